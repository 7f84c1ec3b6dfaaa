// SPDX-License-Identifier: Apache-2.0
//
// The HTML report. All numbers are those of the JSON report in the page; the timeline's are in the
// columns beside it (docs/html-report.md). Names go into the page as text, never as markup.
(() => {
'use strict';

// ---- small things --------------------------------------------------------------------------------

const byId = (id) => document.getElementById(id);
const parse = (id) => {
  const element = byId(id);
  return element ? JSON.parse(element.textContent) : null;
};
// make('td', {class: 'number'}, 'text', child, …)
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}
const styled = (element, style) => Object.assign(element.style, style) && element;
const swatch = (colour) => styled(make('span', {class: 'swatch', 'aria-hidden': 'true'}),
                                  {background: `var(--${colour})`});

function fixed(value, digits) {
  return value.toLocaleString('en', {minimumFractionDigits: digits, maximumFractionDigits: digits});
}
// A length of time given in ms.
function time(ms) {
  if (ms === null || ms === undefined) return 'not known';
  const size = Math.abs(ms);
  if (size >= 10000) return fixed(ms / 1000, 2) + ' s';
  if (size >= 100) return fixed(ms, 1) + ' ms';
  if (size >= 1) return fixed(ms, 2) + ' ms';
  if (size >= 0.001) return fixed(ms * 1000, size >= 0.1 ? 1 : 2) + ' µs';
  return size === 0 ? '0' : fixed(ms * 1e6, 0) + ' ns';
}
const count = (n) => n === null || n === undefined ? 'not known' : n.toLocaleString('en');
const percent = (share) => share === null || share === undefined ? 'not known' : fixed(100 * share, 1) + ' %';
function bytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  for (; n >= 1000 && unit < units.length - 1; n /= 1000) ++unit;
  return (unit ? fixed(n, n >= 100 ? 0 : 1) : count(n)) + ' ' + units[unit];
}
const baseName = (file) => file.slice(file.lastIndexOf('/') + 1);
// With its folder, where the name alone says nothing.
const sourceName = (file) => /[^/]+\/__(init|main)__\.py$/.exec(file)?.[0] || baseName(file);
// As the text report has it: "train.py:57 (main)".
function line(source) {
  if (!source) return '';
  return sourceName(source.file) + (source.line > 0 ? ':' + source.line : '') +
         (source.function ? ` (${source.function})` : '');
}
function region(row) {
  if (row.after && row.before) {
    const a = line(row.after), b = line(row.before);
    return a === b ? a : `after ${a}, before ${b}`;
  }
  return row.after ? 'after ' + line(row.after) : row.before ? line(row.before) : '';
}

const idleTitles = {
  step_start: 'start of the step', after_sync: 'after a synchronisation', launch: 'launching',
  blocked_call: 'blocked in other CUDA calls', host_elsewhere: 'host elsewhere in mid-step',
  queued: 'work queued, not begun', unknown: 'unknown (work without times)',
};
const idleOrder = Object.keys(idleTitles);

// ---- theme ---------------------------------------------------------------------------------------

const dark = matchMedia('(prefers-color-scheme: dark)');
let themeChoice = 'auto';
try {
  themeChoice = localStorage.getItem('gpubusy-theme') || 'auto';
} catch (error) {
  themeChoice = 'auto';  // storage is refused to this page; the system's choice stays
}
const onTheme = [];
function applyTheme(force) {
  const theme = force || (themeChoice === 'auto' ? (dark.matches ? 'dark' : 'light') : themeChoice);
  document.documentElement.dataset.theme = theme;
  byId('theme').textContent = 'Theme: ' + themeChoice;
  for (const call of onTheme) call();
}
byId('theme').addEventListener('click', () => {
  const order = ['auto', 'light', 'dark'];
  themeChoice = order[(order.indexOf(themeChoice) + 1) % 3];
  try {
    localStorage.setItem('gpubusy-theme', themeChoice);
  } catch (error) {
    byId('theme').title = 'this browser does not remember it';
  }
  applyTheme();
});
dark.addEventListener('change', () => applyTheme());
addEventListener('beforeprint', () => {
  for (const details of document.querySelectorAll('details')) details.open = true;
  applyTheme('light');
});
addEventListener('afterprint', () => applyTheme());
applyTheme();

// ---- tables --------------------------------------------------------------------------------------

// columns: {title, value(row), text(row)?, number?, node(row)?, wide?}. Sorts by a click on a header.
function table(caption, columns, rows, options = {}) {
  const first = options.first || 50;
  let sorted = rows.slice(), by = -1, down = true, needle = '', all = false;
  const body = make('tbody');
  const heads = columns.map((column, index) => column.plain ? make('th', {scope: 'col'}, column.title) : make(
      'th', {scope: 'col', class: column.number && 'number', 'aria-sort': 'none'},
      make('button', {type: 'button', onclick: () => {
        down = by === index ? !down : Boolean(column.number);
        by = index;
        sort();
        show();
      }}, column.title)));
  const element = make('table', {}, make('caption', {}, caption),
                       make('thead', {}, make('tr', {}, ...heads)), body);
  const text = (column, row) => {
    const value = column.text ? column.text(row) : column.value(row);
    return value === null || value === undefined ? '' : String(value);
  };
  function sort() {
    heads.forEach((head, index) => columns[index].plain || head.setAttribute(
        'aria-sort', index !== by ? 'none' : down ? 'descending' : 'ascending'));
    const {value} = columns[by];
    sorted.sort((a, b) => {
      const x = value(a), y = value(b);
      const order = columns[by].number ? (x ?? -Infinity) - (y ?? -Infinity)
                                       : String(x ?? '').localeCompare(String(y ?? ''));
      return down ? -order : order;
    });
  }
  const tools = make('div', {class: 'table-tools'});
  const state = make('span', {class: 'count', role: 'status'});
  const more = make('button', {type: 'button', onclick: () => { all = true; show(); }}, 'Show all');
  if (rows.length > 8) {
    const input = make('input', {type: 'search', spellcheck: 'false', oninput: () => {
      needle = input.value.toLowerCase();
      show();
    }});
    tools.append(make('label', {}, `Filter `, input), state, more);
  }
  function show() {
    const found = needle === '' ? sorted : sorted.filter(
        (row) => columns.some((column) => text(column, row).toLowerCase().includes(needle)));
    const shown = all ? found : found.slice(0, first);
    body.replaceChildren(...shown.map((row) => make(
        'tr', {}, ...columns.map((column, index) => {
          const value = column.value(row);
          return make(index === 0 ? 'th' : 'td',
                      {scope: index === 0 && 'row', 'data-value': value ?? '',
                       class: [column.number && 'number', column.wide && 'wide',
                               column.mono && 'mono'].filter(Boolean).join(' ') || null},
                      column.node ? column.node(row) : !column.wide ? text(column, row) :
                      make('span', {class: 'clamp', title: text(column, row)}, text(column, row)));
        }))));
    state.textContent = shown.length < rows.length ? `${count(shown.length)} of ${count(rows.length)}` : `${count(rows.length)} rows`;
    more.hidden = shown.length === found.length;
  }
  show();
  const box = make('div', {class: 'table-box', tabindex: '0', role: 'region', 'aria-label': caption},
                   element);
  return make('div', {id: options.id}, tools, box);
}
const meter = (share, colour) => styled(make('span', {class: 'meter', 'aria-hidden': 'true'}),
    {width: `${Math.max(0, Math.min(1, share)) * 8}rem`, background: `var(--${colour})`});

// ---- verdict -------------------------------------------------------------------------------------

const report = parse('report');
const processes = report.processes;
const per = (p) => (p.mode === 'steps' && p.steps.length) || 1;
const isKnown = (p) => p.busy_share !== null && p.busy_share !== undefined;

function facts(p, head) {
  const gpu = p.device === null ? 'none' : `GPU ${p.device} (${p.device_name || 'unnamed'})`;
  const pairs = [
    ['Process', `pid ${p.pid} on ${p.host || 'an unnamed host'}` +
        (p.rank === null ? '' : `, rank ${p.rank}` + (p.world_size ? ` of ${p.world_size}` : ''))],
    ['Device', gpu],
    ['Recorded', head ? new Date(head.begin_unix_ms).toLocaleString([], {dateStyle: 'medium', timeStyle: 'medium'}) : 'not known'],
    ['Judged', p.mode === 'steps' ? steppedText(p) : `no step; ${time(p.wall_ms)} in all`],
    ['Device times', p.time_source === 'none' ? 'none' : `from ${p.time_source}`],
  ];
  if (p.other_devices.length) {
    pairs.push(['Other devices', p.other_devices.map(
        (d) => `GPU ${d.device}: ${percent(d.busy_share)} busy`).join('; ')]);
  }
  byId('facts').replaceChildren(...pairs.map(
      ([name, value]) => make('div', {}, make('dt', {}, name), make('dd', {}, value))));
}
function steppedText(p) {
  const s = p.steps;
  if (!s.length) return 'no step';
  const numbers = s.length === 1 ? `step ${s[0].step}` : `${count(s.length)} steps, ${s[0].step} to ${s[s.length - 1].step}`;
  return `${numbers} (end: ${p.step_source})`;
}

// Parts of a time that add up to it: busy, then idle, each by size. `division` is of a step, or of all.
const familyColours = {compute: 'busy', communication: 'communication', copies: 'copy', input: 'step_start',
  launching: 'launch', waiting: 'after_sync', calls: 'blocked_call', host: 'host_elsewhere', queued: 'queued',
  unknown: 'unknown'};
function parts(p) {
  if (!p.division) return [];
  return p.division.parts.map((row) => ({
    part: row.part, colour: familyColours[row.family], title: (row.busy ? 'busy: ' : 'idle: ') + row.title,
    busy: row.busy, ms: row.total_ns / 1e6, hidden_ms: row.hidden_ns / 1e6, line: row.line,
  })).sort((a, b) => b.busy - a.busy || b.ms - a.ms);
}

function hero(p) {
  const busy = byId('busy');
  const known = isKnown(p);
  busy.replaceChildren(make('strong', {'data-value': p.busy_share ?? ''}, percent(p.busy_share)),
      make('span', {}, !known ? 'how busy the GPU was' :
           p.mode === 'steps' ? `of the time the GPU is busy; a step takes ${time(p.mean_step_ms)}`
                              : 'of the recorded time the GPU is busy'));
  const shown = known ? parts(p).filter((part) => part.ms > 0) : [];
  byId('split').replaceChildren(...shown.map((part) => styled(
      make('div', {title: `${part.title}: ${percent(part.ms / p.wall_ms)}`}),
      {width: `${100 * part.ms / p.wall_ms}%`, background: `var(--${part.colour})`})));
  byId('split').setAttribute('aria-label', shown.map(
      (part) => `${part.title} ${percent(part.ms / p.wall_ms)}`).join(', ') || 'not known');
  byId('legend').replaceChildren(...shown.filter((part) => part.ms / p.wall_ms >= 0.0005).map(
      (part) => make('li', {}, swatch(part.colour), `${part.title} ${percent(part.ms / p.wall_ms)}`)));
}

function findings(p) {
  byId('findings').replaceChildren(...p.findings.map((f, index) => {
    const words = make('dl');
    const add = (name, text, style) => {
      if (text) words.append(make('dt', {}, name), make('dd', {class: style}, text));
    };
    add('where', f.where, 'mono');
    add('seen', f.evidence);
    add('cure', f.cure, 'cure');
    if (f.gain) add('gain', `step ${fixed(f.gain.now_ms, 1)} to ${fixed(f.gain.step_ms, 1)} ms (${fixed(f.gain.low_ms, 1)} to ${fixed(f.gain.high_ms, 1)}) if ${f.gain.change}; predicted`);
    return make('li', {class: f.problem ? 'problem' : f.id === 'gpu_busy' ? 'fine' : null, 'data-id': f.id},
        make('div', {class: 'finding-top'}, make('h3', {}, `${index + 1}. ${f.title}`),
             f.share > 0 ? make('span', {class: 'share', 'data-value': f.share}, percent(f.share)) : null),
        words);
  }));
  if (!p.findings.length) byId('findings').append(make('li', {}, 'Nothing stands out.'));
}

// What `gpubusy whatif` says of this process.
const whatif = parse('whatif');
function predictions(p) {
  const box = byId('predictions');
  box.replaceChildren();
  const found = whatif && whatif.processes.find((process) => process.pid === p.pid);
  if (!found || (!found.predictions.length && !found.error)) return;
  box.append(make('h2', {}, 'What a change would bring'));
  if (found.error) {
    box.append(make('p', {class: 'note'}, `No prediction: ${found.error}`));
    return;
  }
  box.append(make('p', {class: 'note'}, `Predicted from the recorded steps (${time(found.step_ms)} each; the model, with nothing changed, says ${time(found.model_ms)}), not measured.`));
  box.append(table('Predicted step', [
    {title: 'change', value: (r) => r.changes.join(' + '), mono: true},
    {title: 'step', value: (r) => r.step_ms, text: (r) => time(r.step_ms), number: true},
    {title: 'at least', value: (r) => r.low_ms, text: (r) => time(r.low_ms), number: true},
    {title: 'at most', value: (r) => r.high_ms, text: (r) => time(r.high_ms), number: true},
    {title: 'faster', value: (r) => found.step_ms / r.step_ms, text: (r) => fixed(found.step_ms / r.step_ms, 2) + ' ×', number: true},
    {title: 'GPU busy', value: (r) => r.gpu_busy, text: (r) => percent(r.gpu_busy), number: true},
    {title: 'assumed', value: (r) => r.assumed.join('; '), wide: true},
  ], found.predictions, {id: 'table-predictions'}));
}

// ---- steps ---------------------------------------------------------------------------------------

const maxBars = 300;
function strip(p) {
  const box = byId('strip'), details = byId('step-details'), steps = p.steps;
  const real = p.mode === 'steps' && steps.length > 0;
  box.hidden = !steps.length;
  const size = Math.max(1, Math.ceil(steps.length / maxBars));
  const bars = [], kinds = parts(p);
  for (let i = 0; i < steps.length; i += size) {
    const group = steps.slice(i, i + size), n = group.length;
    const mean = (get) => group.reduce((sum, s) => sum + get(s), 0) / n;
    const known = group[0].busy_ms !== null;
    bars.push({
      first: group[0].step, last: group[n - 1].step, index: i, known, wall_ms: mean((s) => s.wall_ms),
      busy_ms: known ? mean((s) => s.busy_ms) : null,
      parts: known ? kinds.map((part) => ({...part, ms: p.division.steps.slice(i, i + size).reduce(
          (sum, s) => sum + (s.ns[part.part] || 0), 0) / n / 1e6})).filter((part) => part.ms > 0) : null,
    });
  }
  const median = p.step_ms.median, longest = Math.max(0, ...bars.map((b) => b.wall_ms));
  // One step of a minute must not flatten all others.
  const top = Math.min(longest, real ? 3 * median : longest) * 1.04 || 1;
  const describe = (bar) => {
    const name = !real ? 'Everything recorded' : bar.first === bar.last ? `Step ${bar.first}` : `Steps ${bar.first} to ${bar.last} (mean)`;
    if (!bar.known) return `${name}: ${time(bar.wall_ms)}; whether the GPU was busy is not known`;
    return `${name}: ${time(bar.wall_ms)}, busy ${percent(bar.busy_ms / bar.wall_ms)}` + bar.parts.filter(
        (part) => !part.busy).map((part) => `; ${part.title} ${time(part.ms)}`).join('');
  };
  const buttons = bars.map((bar, index) => {
    const stack = make('div', {class: bar.wall_ms > top ? 'stack clipped' : 'stack'});
    styled(stack, {height: `${100 * Math.min(1, bar.wall_ms / top)}%`});
    const pieces = bar.known ? bar.parts : [{colour: 'unknown', ms: bar.wall_ms}];
    for (const part of pieces) {
      stack.append(styled(make('div'), {height: `${100 * part.ms / bar.wall_ms}%`, background: `var(--${part.colour})`}));
    }
    const show = () => { details.textContent = describe(bar); };
    return make('button', {type: 'button', tabindex: index ? '-1' : '0', 'aria-label': describe(bar),
      onmouseenter: show, onfocus: show,
      onclick: () => {
        if (!timeline) return;
        timeline.zoomToStep(bar.index, size);
        byId('timeline').scrollIntoView();
      },
      onkeydown: (event) => {
        const to = {ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: buttons.length - 1}[event.key];
        if (to === undefined || !buttons[to]) return;
        event.preventDefault();
        for (const button of buttons) button.tabIndex = -1;
        buttons[to].tabIndex = 0;
        buttons[to].focus();
      }}, stack);
  });
  box.replaceChildren(...buttons);
  if (real && median) {
    box.append(styled(make('div', {class: 'median', 'aria-hidden': 'true'},
                           make('span', {}, `median ${time(median)}`)), {bottom: `${100 * median / top}%`}));
  }
  details.textContent = buttons.length ? 'Point at a bar, or move with the arrow keys; a click shows it in the timeline.' : '';
  const clipped = bars.filter((b) => b.wall_ms > top).length;
  byId('steps-note').textContent = !real ? 'No step was seen.' :
      `Median ${time(median)}, from ${time(p.step_ms.min)} to ${time(p.step_ms.max)}.` +
      (size > 1 ? ` Each bar is the mean of ${size} steps.` : '') +
      (clipped ? ` ${clipped} of the bars are cut at the top (dotted).` : '') +
      (p.other_steps ? ` ${count(p.other_steps)} steps outside the recorded windows: median ${time(p.other_step_ms.median)}.` : '');

  const divided = new Map(p.division ? steps.map((s, i) => [s, p.division.steps[i].ns]) : []);
  const ofStep = (s) => divided.get(s) || {};
  byId('steps-table').replaceChildren(table('Steps (ms)', [
    {title: 'step', value: (s) => s.step, number: true},
    {title: 'wall', value: (s) => s.wall_ms, text: (s) => fixed(s.wall_ms, 3), number: true},
    {title: 'busy', value: (s) => s.busy_ms, text: (s) => s.busy_ms === null ? 'not known' : fixed(s.busy_ms, 3), number: true},
    {title: 'busy share', value: (s) => s.busy_ms === null ? null : s.busy_ms / s.wall_ms, text: (s) => s.busy_ms === null ? 'not known' : percent(s.busy_ms / s.wall_ms), number: true},
    ...kinds.map((part) => ({title: part.title, value: (s) => ofStep(s)[part.part] || 0,
      text: (s) => fixed((ofStep(s)[part.part] || 0) / 1e6, 3), number: true})),
    {title: 'kernels', value: (s) => s.kernels, number: true},
    {title: 'work', value: (s) => s.device_work, number: true},
  ], steps, {id: 'table-steps'}));
}

function splitTable(p) {
  const n = per(p), unit = p.mode === 'steps' ? 'ms per step' : 'ms';
  const rows = isKnown(p) ? parts(p) : [];
  byId('split-table').replaceChildren(rows.length ? table('Where the time goes (mean)', [
    {title: 'time', value: (r) => r.title, node: (r) => make('span', {class: 'keyed'}, swatch(r.colour), r.title)},
    {title: unit, value: (r) => r.ms / n, text: (r) => fixed(r.ms / n, 3), number: true},
    {title: 'share', value: (r) => r.ms / p.wall_ms, text: (r) => percent(r.ms / p.wall_ms), number: true},
    ...(rows.some((r) => r.hidden_ms) ? [{title: 'hidden beside', value: (r) => r.hidden_ms / n,
      text: (r) => r.hidden_ms ? fixed(r.hidden_ms / n, 3) : '', number: true}] : []),
    {title: 'most at', value: (r) => line(r.line), mono: true},
  ], rows, {id: 'table-split'}) : make('p', {}, 'No device time was measured: how busy the GPU was is not known.'));
  const host = [['outside of CUDA', 'outside'], ['launching', 'launching'], ['waiting for the device', 'waiting'],
                ['in other CUDA calls', 'other_calls']].map(([title, id]) => ({title, ms: p.host_ms[id]}));
  byId('host-table').replaceChildren(table('Meanwhile the host is (mean)', [
    {title: 'state', value: (r) => r.title},
    {title: unit, value: (r) => r.ms / n, text: (r) => fixed(r.ms / n, 3), number: true},
    {title: 'share', value: (r) => p.wall_ms ? r.ms / p.wall_ms : null, text: (r) => percent(p.wall_ms ? r.ms / p.wall_ms : null), number: true},
    {title: 'bar', plain: true, value: (r) => r.ms, node: (r) => meter(p.wall_ms ? r.ms / p.wall_ms : 0, 'step')},
  ], host, {id: 'table-host'}));
}

// ---- tables of the report ------------------------------------------------------------------------

const gapTitles = {runs: 'runs', no_processor: 'waits for a processor', gil: 'waits for the GIL', garbage_collection: 'collects garbage',
  data_loader_workers: 'waits for a DataLoader worker', child_process: 'waits for a child process', lock: 'waits for a lock', sleep: 'sleeps',
  page_fault: 'waits for memory (page fault)', file_read: 'reads a file', file_write: 'writes a file', file_look_up: 'looks up files',
  input: 'waits for input', output: 'writes output', memory_mapping: 'maps memory', not_seen: 'not looked at', other: 'something else'};
function allTables(p) {
  const n = per(p), each = p.mode === 'steps' ? ' per step' : '';
  const perStep = (title, get) => ({title: title + each, value: (r) => get(r) === null ? null : get(r) / n,
    text: (r) => get(r) === null ? 'not known' : time(get(r) / n), number: true});
  const perCount = (get = (r) => r.count) => ({title: 'count' + each, value: (r) => get(r) / n,
    text: (r) => (get(r) / n).toLocaleString('en', {maximumFractionDigits: 2}), number: true});
  const at = {title: 'at', value: (r) => line(r.line), mono: true};
  const length = (title, get) => ({title, value: get, text: (r) => time(get(r)), number: true});
  const out = [];
  const add = (id, caption, columns, rows) => {
    if (rows && rows.length) out.push(table(caption, columns, rows, {id: 'table-' + id, first: 15}));
  };
  add('kernels', 'Kernels', [
    {title: 'name', value: (r) => r.name, wide: true, mono: true}, perCount(), perStep('device', (r) => r.total_ms),
    {title: 'share of kernels', value: (r) => r.share, text: (r) => percent(r.share), number: true}, at,
  ], p.kernels);
  add('copies', 'Copies', [
    {title: 'direction', value: (r) => `${r.direction} ${r.host_memory} ${r.asynchronous ? 'async' : 'sync'}`}, perCount(),
    {title: 'bytes' + each, value: (r) => r.bytes / n, text: (r) => bytes(r.bytes / n), number: true},
    {title: 'GB/s', value: (r) => r.gb_per_s, text: (r) => r.timed ? fixed(r.gb_per_s, 2) : 'not known', number: true},
    perStep('device', (r) => r.device_ms), perStep('host', (r) => r.host_ms),
    perStep('host, no kernel running', (r) => r.host_ms_without_kernel), at,
  ], p.copies);
  add('waits', 'Synchronisations', [
    {title: 'call', value: (r) => r.call, mono: true}, perCount(), perStep('host', (r) => r.host_ms),
    perStep('device busy meanwhile', (r) => r.device_busy_ms), perStep('idle after', (r) => r.idle_after_ms), at,
  ], p.waits);
  add('idle', 'Idle time by line', [
    {title: 'cause', value: (r) => idleTitles[r.class]}, perStep('idle', (r) => r.total_ms),
    {title: 'steps', value: (r) => r.steps, number: true}, {title: 'pieces', value: (r) => r.pieces, text: (r) => count(r.pieces), number: true},
    {title: 'call', value: (r) => r.call, mono: true},
    {title: 'where', value: (r) => region(r) || 'not known', mono: true, wide: true},
  ], p.idle_by_line);
  const gaps = p.host_in_gaps;
  add('gaps', `What the host did in the gaps (looked at ${percent(gaps.total_ms ? gaps.seen_ms / gaps.total_ms : null)} of their time)`, [
    {title: 'where', value: (r) => [line(r.line), ...r.inner.map(line)].filter(Boolean).join(' > ') || 'not known', mono: true, wide: true},
    {title: 'what', value: (r) => gapTitles[r.kind] || r.kind}, perStep('time', (r) => r.total_ms),
    {title: 'system call', value: (r) => r.system_call, mono: true},
    {title: 'looks', value: (r) => r.looks, text: (r) => count(r.looks), number: true},
  ], gaps.rows);
  add('gil', 'Which threads held the GIL while the launching ones waited for it', [
    {title: 'thread', value: (r) => r.thread_id, text: (r) => `${r.thread_id} ${r.thread}`}, at, perStep('time', (r) => r.total_ms),
    {title: 'looks', value: (r) => r.looks, text: (r) => count(r.looks), number: true},
  ], gaps.gil.holders);
  add('pauses', 'The host outside of CUDA, by line', [
    {title: 'where', value: (r) => region(r) || 'not known', mono: true, wide: true}, perStep('time', (r) => r.total_ms),
    {title: 'steps', value: (r) => r.steps, number: true}, {title: 'pieces', value: (r) => r.pieces, text: (r) => count(r.pieces), number: true},
  ], p.host_pauses_by_line);
  add('ranges', 'Ranges (NVTX, cuDNN, NCCL)', [
    {title: 'name', value: (r) => (r.domain ? r.domain + ': ' : '') + r.name, wide: true, mono: true}, perCount(), perStep('time', (r) => r.total_ms),
    {title: 'share', value: (r) => r.share, text: (r) => percent(r.share), number: true},
    perStep('GPU idle inside', (r) => r.gpu_idle_ms), length('longest', (r) => r.longest_ms),
  ], p.ranges);
  add('calls', 'CUDA calls', [
    {title: 'call', value: (r) => r.name, mono: true}, perCount(), perStep('host', (r) => r.total_ms), length('longest', (r) => r.longest_ms),
    {title: 'failed', value: (r) => r.failed, number: true},
  ], p.calls_by_name);
  const a = p.allocations;
  if (a.device_allocs + a.device_frees + a.host_allocs + a.host_frees > 0) {
    add('memory', 'Allocations', [
      {title: 'what', value: () => 'in the judged steps'},
      {title: 'device', value: (r) => r.device_allocs, number: true}, {title: 'freed', value: (r) => r.device_frees, number: true},
      {title: 'pinned host', value: (r) => r.host_allocs, number: true}, {title: 'freed, host', value: (r) => r.host_frees, number: true},
      {title: 'failed', value: (r) => r.failed, number: true}, length('host', (r) => r.host_ms),
      length('GPU idle', (r) => r.idle_ms), at], [a]);
  }
  byId('all-tables').replaceChildren(...(out.length ? out : [make('p', {}, 'No CUDA call in the judged steps.')]));
}

// ---- what it rests on ----------------------------------------------------------------------------

function rests(p, head) {
  const c = p.coverage, box = byId('rests-body');
  const sources = Object.entries(c.device_times_by_source).map(([name, n]) => `${count(n)} by ${name}`).join(', ') || 'none';
  const rows = [
    ['CUDA calls recorded', p.calls], ['device work expected in the judged steps', c.device_work_expected],
    ['… of this with a device time', c.device_work_timed], ['device times', sources],
    ['not timed: during a graph capture', c.untimed_capture], ['not timed: beyond the timer limit', c.untimed_limit],
    ['not timed: not yet collected', c.untimed_pending], ['not timed: no context, or refused by the driver', c.untimed_failed],
    ['not timed: not asked for', c.untimed_off], ['calls that went into a graph', c.captured_calls],
    ['device times without a recorded call', c.orphan_times], ['calls that CUPTI saw and no hook', c.unhooked_calls],
    ['records that CUPTI dropped', c.dropped_activities], ['calls that failed', c.failed_calls],
    ['work that seems to begin before its launch', c.early_device_work],
    ['largest uncertainty of a device time', `${fixed(c.max_uncertainty_us, 3)} µs`],
    ['most that a device clock was moved', `${fixed(p.clock_correction_us, 3)} µs`],
    ['records lost', p.lost_records], ['blocks cut short', p.torn_blocks], ['bad records', p.bad_records],
    ['records of an unknown kind', p.unknown_records], ['unreadable bytes', p.bad_bytes], ['state of the recording', p.state],
    ['steps seen in all', p.steps_seen], ['windows', p.windows], ['windows cut short', p.cut_windows],
    ['warm-up steps left out', p.warmup_left_out], ['outlier steps', p.outlier_steps],
    ['CUPTI’s own work in these steps', time(p.overhead_ms.cupti)], ['launches waiting for room in the queue', time(p.overhead_ms.launch_queue_full)],
    ['the driver loading code', time(p.overhead_ms.code_loading)], ['CUDA calls by API', `runtime ${count(c.layers.runtime.calls)}, driver ${count(c.layers.driver.calls)}`],
    ['files with a CUDA runtime of their own', c.embedded_runtimes.map(baseName).join(', ') || 'none'],
    ['library version', p.library_version], ['recording', p.recording],
  ];
  if (head) rows.push(['events in the timeline', head.events], ['events left out of the timeline for size', head.left_out],
                      ['calls outside of the judged windows, not in the timeline', head.calls_outside]);
  const list = (title, items) => items && items.length ? [make('h3', {}, title), make('ul', {}, ...items.map((item) => make('li', {}, item)))] : [];
  box.replaceChildren(
      ...list('Warnings', p.warnings), ...list('What the library had to say', p.notices),
      ...list('Files that could not be read', report.skipped),
      ...list('Processes that loaded the driver and made no call', report.driver_loaded_without_calls.map((u) => `pid ${u.pid}: ${u.command}`)),
      ...list('Modules that could not be looked into', c.modules_not_read.map((m) => `${m.path}: ${m.why}`)),
      table('Coverage', [{title: 'what', value: (r) => r[0]},
                         {title: 'how much', value: (r) => r[1], text: (r) => typeof r[1] === 'number' ? count(r[1]) : r[1]}],
            rows, {id: 'table-coverage', first: 100}),
      ...list('Settings', p.settings));
}

// ---- the timeline's data -------------------------------------------------------------------------

const kindNames = ['kernel', 'copy to the device', 'copy to the host', 'other copy', 'memset', 'CUDA graph',
  'launch call', 'waiting call', 'copy call', 'memory call', 'other call', 'range', 'step'];
const kindColours = ['busy', 'copyd', 'copyd', 'copyd', 'memset', 'graph', 'launch', 'wait', 'copyd', 'memory', 'other', 'range', 'step'];
const firstIdle = kindNames.length;

async function unpack(id) {
  const element = byId(id), text = element.textContent.trim();
  let packed;
  if (Uint8Array.fromBase64) {
    packed = Uint8Array.fromBase64(text);
  } else {
    const binary = atob(text);
    packed = new Uint8Array(binary.length);
    for (let i = 0; i < packed.length; ++i) packed[i] = binary.charCodeAt(i);
  }
  if (element.type !== 'application/gzip') return packed;
  if (typeof DecompressionStream === 'undefined') {
    throw new Error('This browser cannot unpack the timeline (Chrome 80, Firefox 113 or Safari 16.4 can; `gpubusy report --no-compress` makes a page for older ones).');
  }
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function decode(head, data) {
  let at = 0;
  const next = () => {
    let byte = data[at++];
    if (byte < 128) return byte;
    let value = byte & 127, unit = 128;
    do {
      byte = data[at++];
      value += (byte & 127) * unit;
      unit *= 128;
    } while (byte >= 128);
    return value;
  };
  const column = (n) => {
    const out = new Uint32Array(n);
    for (let i = 0; i < n; ++i) out[i] = next();
    return out;
  };
  const wide = (n) => {
    const out = new Float64Array(n);
    for (let i = 0; i < n; ++i) out[i] = next();
    return out;
  };
  const model = {head, parents: column(head.nodes), frames: column(head.nodes), lanes: [],
                 callLane: new Uint16Array(head.calls + 1), callIndex: new Uint32Array(head.calls + 1)};
  head.lanes.forEach((lane, number) => {
    const n = lane.count;
    const start = wide(n), end = wide(n), sum = new Float64Array(n + 1);
    let now = 0;
    for (let i = 0; i < n; ++i) {
      sum[i + 1] = sum[i] + end[i];  // lengths, so far
      start[i] += now;
      now = end[i] += start[i];
    }
    const out = {...lane, n, start, end, sum, name: column(n)};
    if (lane.kind === 'idle') {
      out.idle = head.idle_classes.map(() => wide(n));
      out.stack = column(n);
      out.beforeStack = column(n);
    } else if (lane.kind !== 'steps') {
      out.bytes = wide(n);
      if (lane.kind !== 'ranges') {
        out.call = new Uint32Array(n);
        let call = 0;
        for (let i = 0; i < n; ++i) {
          const step = next();
          call += step % 2 ? -(step + 1) / 2 : step / 2;
          out.call[i] = call;
        }
      }
      if (lane.kind === 'calls') {
        out.stack = column(n);
        out.result = column(n);
        for (let i = 0; i < n; ++i) {
          model.callLane[out.call[i]] = number + 1;
          model.callIndex[out.call[i]] = i;
        }
      }
    }
    model.lanes.push(out);
  });
  if (at !== data.length) throw new Error(`The timeline is damaged: ${data.length - at} bytes too many.`);
  const order = {steps: 0, idle: 1, device: 2, ranges: 3, calls: 4};
  model.byNumber = model.lanes.slice();
  model.lanes.sort((a, b) => order[a.kind] - order[b.kind]);
  return model;
}

// First index whose value is > x, of a sorted array.
function after(array, x, low = 0, high = array.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (array[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}
// How much of [from, to) the events of a lane cover.
function coveredBy(lane, from, to) {
  const first = after(lane.end, from), last = after(lane.start, to);
  if (first >= last) return 0;
  let ns = lane.sum[last] - lane.sum[first];
  if (lane.start[first] < from) ns -= from - lane.start[first];
  if (lane.end[last - 1] > to) ns -= lane.end[last - 1] - to;
  return ns;
}

// ---- the timeline --------------------------------------------------------------------------------

// A colour, lighter or darker by what a text says; "#rrggbb" to "#rrggbb".
function shade(colour, text) {
  let hash = 7;
  for (let i = 0; i < text.length; ++i) hash = (hash * 31 + text.charCodeAt(i)) % 9973;
  const factor = 0.78 + hash % 7 * 0.055;
  const part = (at) => Math.round(Math.min(255, parseInt(colour.slice(at, at + 2), 16) * factor)).toString(16).padStart(2, '0');
  return '#' + part(1) + part(3) + part(5);
}

const axisHeight = 26, laneHeight = 19;
class Timeline {
  constructor(model) {
    this.model = model;
    this.box = byId('lanes');
    this.canvas = byId('canvas');
    this.context = this.canvas.getContext('2d');
    this.map = byId('minimap');
    this.span = Math.max(1, model.head.span_ns);
    this.from = 0;
    this.to = this.span;
    this.selected = null;
    this.lane = 0;
    this.matches = null;
    this.tops = [];
    let y = axisHeight;
    for (const lane of model.lanes) {
      if (lane.depth === 0) y += 3;
      this.tops.push(y);
      y += laneHeight;
    }
    this.height = y + 4;
    byId('spacer').style.height = '0';
    this.stepLane = model.lanes.find((lane) => lane.kind === 'steps');
    this.holes = model.head.windows.slice(1).map(([begin], i) => [model.head.windows[i][1], begin, 'not recorded']);
    if (model.head.cut_ns !== null) this.holes.push([model.head.cut_ns, this.span, 'left out for size']);
    this.resize();
    if (this.stepLane && this.stepLane.n) this.zoomToStep(0, Math.min(3, this.stepLane.n));
  }

  // -- geometry --
  get gutter() { return this.width < 600 ? 100 : 190; }
  x(ns) { return this.gutter + (ns - this.from) / (this.to - this.from) * (this.width - this.gutter); }
  timeAt(x) { return this.from + (x - this.gutter) / (this.width - this.gutter) * (this.to - this.from); }
  resize() {
    const ratio = devicePixelRatio || 1;
    this.width = Math.max(200, this.box.clientWidth);
    this.shown = Math.min(this.height, Math.min(544, innerHeight * 0.75));
    this.box.style.height = `${this.shown + 2}px`;
    byId('spacer').style.height = `${Math.max(0, this.height - this.shown)}px`;
    for (const [canvas, width, height] of [[this.canvas, this.width, this.shown], [this.map, this.map.clientWidth, 42]]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.getContext('2d').setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.shown}px`;
    this.mapImage = null;
    this.context.font = '12px system-ui, sans-serif';
    this.labels = this.model.lanes.map((lane) => this.fitted(lane.label, this.gutter - 12));
    this.redraw();
  }
  // A text, its end left out where it is too wide.
  fitted(text, width) {
    if (this.context.measureText(text).width <= width) return text;
    let size = text.length;
    while (size > 1 && this.context.measureText(text.slice(0, size) + '…').width > width) --size;
    return text.slice(0, size) + '…';
  }
  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }
  view(from, to) {
    const least = 50;  // ns
    let size = Math.min(this.span, Math.max(least, to - from));
    from = Math.min(Math.max(0, from), this.span - size);
    this.from = from;
    this.to = from + size;
    this.redraw();
  }
  zoom(factor, at = (this.from + this.to) / 2) {
    const size = Math.min(this.span, Math.max(50, (this.to - this.from) * factor));
    const share = (at - this.from) / (this.to - this.from);
    this.view(at - share * size, at - share * size + size);
  }
  pan(share) {
    const by = (this.to - this.from) * share;
    this.view(this.from + by, this.to + by);
  }
  zoomToStep(index, many = 1) {
    const lane = this.stepLane;
    if (!lane || !lane.n) return;
    const first = Math.min(index, lane.n - 1), last = Math.min(index + many, lane.n) - 1;
    const margin = (lane.end[last] - lane.start[first]) * 0.02;
    this.view(lane.start[first] - margin, lane.end[last] + margin);
  }
  moveStep(by) {
    const lane = this.stepLane;
    if (!lane || !lane.n) return;
    const middle = (this.from + this.to) / 2;
    const now = Math.max(0, after(lane.start, middle) - 1);
    this.zoomToStep(Math.max(0, Math.min(lane.n - 1, now + by)));
  }

  // -- drawing --
  colours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue('--' + name).trim();
    this.colour = {};
    for (const name of ['ink', 'soft', 'line', 'card', 'lane', 'accent', 'match', 'paper', 'bad']) this.colour[name] = get(name);
    this.kindColour = kindColours.concat(this.model.head.idle_classes).map(get);
    // Kernels and ranges side by side can be told apart by shades.
    this.nameColour = this.model.head.names.map(
        ([kind, name]) => kindNames[kind] === 'kernel' || kindNames[kind] === 'range' ? shade(this.kindColour[kind], name) : this.kindColour[kind]);
    const dark = document.documentElement.dataset.theme === 'dark';
    this.label = dark ? '#0b1016' : '#ffffff';
  }
  draw() {
    if (!this.colour) this.colours();
    const began = performance.now();
    const c = this.context, {width, shown} = this, scroll = this.box.scrollTop;
    c.clearRect(0, 0, width, shown);
    this.model.lanes.forEach((lane, index) => {
      const y = this.tops[index] - scroll;
      if (y + laneHeight > axisHeight && y < shown) this.drawLane(lane, index, y);
    });
    this.drawHoles();
    this.drawSelection(scroll);
    this.drawAxis();
    this.drawMap();
    this.drawMilliseconds = performance.now() - began;
  }
  drawLane(lane, index, y) {
    const c = this.context, {gutter, width} = this;
    const height = laneHeight - 2;
    c.fillStyle = this.colour.lane;
    c.fillRect(gutter, y, width - gutter, height);
    c.fillStyle = this.colour.ink;
    c.font = '12px system-ui, sans-serif';
    c.textBaseline = 'middle';
    if (lane.depth === 0) c.fillText(this.labels[index], 6, y + height / 2 + 0.5);
    c.save();
    c.beginPath();
    c.rect(gutter, Math.max(y, axisHeight), width - gutter, height);
    c.clip();
    const perPixel = (this.to - this.from) / (width - gutter);
    const last = after(lane.start, this.to);
    const hit = this.matches;
    let i = after(lane.end, this.from - perPixel);
    while (i < last) {
      const left = this.x(lane.start[i]), size = (lane.end[i] - lane.start[i]) / perPixel;
      if (size >= 1) {
        this.drawEvent(lane, i, left, size, y, height, hit);
        ++i;
        continue;
      }
      // Many in a pixel: one column as high as the share that they cover.
      const pixel = Math.floor(left), from = this.timeAt(pixel), to = this.timeAt(pixel + 1);
      let stop = after(lane.start, to, i, last);
      if (stop === i) stop = i + 1;
      const share = Math.min(1, coveredBy(lane, from, to) / (to - from));
      const tall = Math.max(hit ? 9 : 6, share * height);
      if (hit) c.fillStyle = lane.found[stop] > lane.found[i] ? this.colour.match : this.colour.line;
      else c.fillStyle = this.nameColour[lane.name[(i + stop) >>> 1]];
      c.fillRect(pixel, y + height - tall, 1, tall);
      const tail = stop - 1;
      if ((lane.end[tail] - lane.start[tail]) / perPixel >= 1) i = tail > i ? tail : stop;
      else i = stop;
    }
    c.restore();
  }
  drawEvent(lane, i, left, size, y, height, hit) {
    const c = this.context, name = lane.name[i];
    const from = Math.max(left, this.gutter - 2), to = Math.min(left + size, this.width + 2);
    const found = hit && hit[name];
    c.fillStyle = hit ? (found ? this.colour.match : this.colour.line) : this.nameColour[name];
    const gap = size >= 4 ? 0.75 : 0;
    c.fillRect(from, y, Math.max(1, to - from - gap), height);
    if (lane.result && lane.result[i] && size >= 3) {
      c.fillStyle = this.colour.bad;
      c.fillRect(from, y + height - 3, to - from - gap, 3);
    }
    if (to - from < 34) return;
    c.fillStyle = hit ? (found ? '#1a1400' : this.colour.soft) : this.label;
    c.font = '11px system-ui, sans-serif';
    const room = Math.floor((to - from - 8) / 6.1);
    let text = this.model.head.names[name][1];
    if (text.length > room) text = room > 3 ? text.slice(0, room - 1) + '…' : '';
    c.fillText(text, from + 4, y + height / 2 + 0.5);
  }
  // Where nothing is there because nothing was recorded, or shown.
  drawHoles() {
    const c = this.context;
    for (const [begin, end, why] of this.holes) {
      const left = Math.max(this.gutter, this.x(begin)), right = Math.min(this.width, this.x(end));
      if (right <= left) continue;
      c.fillStyle = this.colour.soft;
      c.globalAlpha = 0.22;
      c.fillRect(left, axisHeight, right - left, this.shown);
      c.globalAlpha = 1;
      if (right - left > 90) {
        c.fillStyle = this.colour.ink;
        c.font = '12px system-ui, sans-serif';
        c.fillText(why, left + 8, axisHeight + 12 + laneHeight / 2);
      }
    }
  }
  drawAxis() {
    const c = this.context, {gutter, width} = this;
    c.fillStyle = this.colour.card;
    c.fillRect(0, 0, width, axisHeight);
    const size = this.to - this.from, wanted = size / Math.max(2, (width - gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].find((k) => k * power >= wanted) * power;
    c.font = '11px system-ui, sans-serif';
    c.textBaseline = 'middle';
    const unit = step >= 1e9 ? ['s', 1e9] : step >= 1e6 ? ['ms', 1e6] : step >= 1e3 ? ['µs', 1e3] : ['ns', 1];
    const base = Math.floor(this.from / step) * step;
    // Far from the beginning the same digits would stand at each mark: they stand once, at the left.
    const offset = size < this.from / 1000 ? base : 0;
    for (let t = base; t <= this.to; t += step) {
      const x = this.x(t);
      if (x < gutter) continue;
      c.fillStyle = this.colour.soft;
      c.fillRect(x, axisHeight - 6, 1, 6);
      c.globalAlpha = 0.13;
      c.fillRect(x, axisHeight, 1, this.shown);
      c.globalAlpha = 1;
      const value = ((t - offset) / unit[1]).toLocaleString('en', {maximumFractionDigits: 3});
      c.fillText((offset ? '+' : '') + value + ' ' + unit[0], x + 4, 10);
    }
    c.fillStyle = this.colour.ink;
    c.fillText(this.fitted(offset ? time(offset / 1e6) + ' +' : time(size / 1e6) + ' shown', gutter - 8), 6, 10);
  }
  drawSelection(scroll) {
    const s = this.selected;
    if (!s) return;
    const c = this.context;
    const box = (lane, i) => {
      const y = this.tops[this.model.lanes.indexOf(lane)] - scroll;
      const left = this.x(lane.start[i]);
      return {y, left, right: Math.max(left + 2, this.x(lane.end[i]))};
    };
    const a = box(s.lane, s.index);
    c.save();
    c.beginPath();
    c.rect(this.gutter - 1, axisHeight, this.width, this.shown);
    c.clip();
    c.strokeStyle = this.colour.ink;
    c.lineWidth = 2;
    c.strokeRect(a.left - 1, a.y - 1, a.right - a.left + 2, laneHeight);
    for (const other of this.partners(s)) {
      const b = box(other.lane, other.index);
      const [call, work] = s.lane.kind === 'calls' ? [a, b] : [b, a];
      c.strokeStyle = this.colour.accent;
      c.lineWidth = 1.5;
      c.strokeRect(b.left - 1, b.y - 1, b.right - b.left + 2, laneHeight);
      c.beginPath();
      c.moveTo(call.left, call.y);
      c.bezierCurveTo(call.left, (call.y + work.y) / 2, work.left, (call.y + work.y) / 2, work.left, work.y + laneHeight);
      c.stroke();
    }
    c.restore();
  }
  drawMap() {
    const c = this.map.getContext('2d'), width = this.map.clientWidth, height = 42;
    if (!this.mapImage || this.mapImage.length !== width) {
      this.mapImage = new Float64Array(width);
      const lanes = this.model.lanes.filter((lane) => lane.kind === 'device');
      for (let x = 0; x < width; ++x) {
        const from = x / width * this.span, to = (x + 1) / width * this.span;
        let most = 0;
        for (const lane of lanes) most += coveredBy(lane, from, to);
        this.mapImage[x] = Math.min(1, most / (to - from));
      }
    }
    c.clearRect(0, 0, width, height);
    c.fillStyle = this.kindColour[0];
    for (let x = 0; x < width; ++x) {
      if (this.mapImage[x] > 0) c.fillRect(x, height - Math.max(1, this.mapImage[x] * (height - 4)), 1, height);
    }
    const left = this.from / this.span * width, right = Math.max(left + 2, this.to / this.span * width);
    c.fillStyle = this.colour.soft;
    c.globalAlpha = 0.22;
    c.fillRect(0, 0, left, height);
    c.fillRect(right, 0, width, height);
    c.globalAlpha = 1;
    c.strokeStyle = this.colour.accent;
    c.lineWidth = 2;
    c.strokeRect(left + 1, 1, right - left - 2, height - 2);
  }

  // -- events --
  // The event at a point of the canvas, or the nearest within a few pixels; null: none.
  eventAt(x, y) {
    if (x < this.gutter || y < axisHeight) return null;
    const at = y + this.box.scrollTop;
    const index = this.tops.findIndex((top) => at >= top - 1 && at < top + laneHeight - 1);
    if (index < 0) return null;
    const lane = this.model.lanes[index], now = this.timeAt(x);
    const near = 4 * (this.to - this.from) / (this.width - this.gutter);
    let best = -1, least = near;
    const next = after(lane.start, now);
    for (const i of [next - 1, next]) {
      if (i < 0 || i >= lane.n) continue;
      const far = now < lane.start[i] ? lane.start[i] - now : now >= lane.end[i] ? now - lane.end[i] : 0;
      if (far < least || (best < 0 && far === 0)) [best, least] = [i, far];
    }
    return best < 0 ? null : {lane, index: best};
  }
  partners(event) {
    const {lane, index} = event;
    if (lane.kind === 'device') {
      const call = lane.call[index], number = this.model.callLane[call];
      return number ? [{lane: this.model.byNumber[number - 1], index: this.model.callIndex[call]}] : [];
    }
    if (lane.kind !== 'calls') return [];
    if (this.partnersOf === event) return this.partnersFound;
    const out = [];
    for (const other of this.model.lanes) {
      if (other.kind !== 'device') continue;
      for (let i = other.call.indexOf(lane.call[index]); i >= 0 && out.length < 64;
           i = other.call.indexOf(lane.call[index], i + 1)) out.push({lane: other, index: i});
    }
    this.partnersOf = event;
    return this.partnersFound = out;
  }
  stack(node) {
    const out = [];
    for (; node; node = this.model.parents[node - 1]) out.push(this.model.head.frames[this.model.frames[node - 1]]);
    return out;  // innermost first
  }
  select(event, show = false) {
    this.selected = event;
    if (event) this.lane = this.model.lanes.indexOf(event.lane);
    if (event && show) this.reveal(event);
    this.describe();
    this.redraw();
  }
  reveal({lane, index}) {
    const start = lane.start[index], end = lane.end[index], size = this.to - this.from;
    if (end < this.from || start > this.to) this.view((start + end - size) / 2, (start + end + size) / 2);
    const y = this.tops[this.model.lanes.indexOf(lane)];
    const {scrollTop} = this.box;
    if (y - scrollTop < axisHeight) this.box.scrollTop = y - axisHeight - 4;
    else if (y + laneHeight - scrollTop > this.shown) this.box.scrollTop = y + laneHeight - this.shown + 4;
  }
  describe() {
    const box = byId('event'), s = this.selected;
    if (!s) {
      box.replaceChildren(make('p', {class: 'count'}, 'Nothing is selected: click an event, or use the keys.'));
      return;
    }
    const {lane, index} = s, [kind, name] = this.model.head.names[lane.name[index]];
    const list = make('dl');
    const add = (key, value) => list.append(make('dt', {}, key), make('dd', {}, value));
    const length = lane.end[index] - lane.start[index];
    add('what', kind >= firstIdle ? 'idle time of the device' : kindNames[kind]);
    add('duration', `${time(length / 1e6)} (${count(length)} ns)`);
    add('begins', `${time(lane.start[index] / 1e6)} after the window’s begin`);
    add('lane', lane.label + (lane.depth ? ` (overlapping, ${lane.depth})` : ''));
    if (lane.bytes && lane.bytes[index]) {
      add('bytes', bytes(lane.bytes[index]) + (lane.kind === 'device' && length ? `, ${fixed(lane.bytes[index] / length, 2)} GB/s` : ''));
    }
    if (lane.result && lane.result[index]) add('failed', `error ${lane.result[index] | 0}`);
    if (lane.idle) {
      add('lost to', this.model.head.idle_classes.map((id, k) => [idleTitles[id], lane.idle[k][index]])
          .filter(([, ns]) => ns > 0).sort((a, b) => b[1] - a[1]).map(([title, ns]) => `${title} ${time(ns / 1e6)}`).join(', '));
    }
    let node = lane.stack ? lane.stack[index] : 0;
    for (const other of this.partners(s)) {
      const work = other.lane.kind === 'device';
      const delay = (work ? 1 : -1) * (other.lane.start[other.index] - lane.start[index]);
      add(work ? 'its work' : 'asked for by', make('button', {type: 'button', onclick: () => this.select(other, true)},
          `${this.model.head.names[other.lane.name[other.index]][1].slice(0, 80)} on ${other.lane.label}`));
      add('from call to work', time(delay / 1e6));
      if (!work) node = other.lane.stack[other.index];
    }
    const frames = (n) => make('ol', {}, ...this.stack(n).map(([file, fn, number, user]) => make(
        'li', {class: user ? 'mono' : 'mono library', title: file}, `${sourceName(file)}:${number} ${fn}`)));
    if (node) add(lane.idle ? 'until' : 'Python', frames(node));
    if (lane.beforeStack && lane.beforeStack[index]) add('since', frames(lane.beforeStack[index]));
    const heading = make('h3', {}, name);
    box.replaceChildren(heading, list);
  }
  neighbour(by) {
    const s = this.selected;
    if (s) {
      const index = s.index + by;
      if (index >= 0 && index < s.lane.n) this.select({lane: s.lane, index}, true);
      return;
    }
    const lane = this.model.lanes[this.lane];
    if (!lane || !lane.n) return;
    const index = Math.min(lane.n - 1, after(lane.end, this.from));
    this.select({lane, index}, true);
  }
  moveLane(by) {
    const {lanes} = this.model;
    const middle = this.selected ? this.selected.lane.start[this.selected.index] : (this.from + this.to) / 2;
    let at = this.lane + by;
    while (at >= 0 && at < lanes.length && !lanes[at].n) at += by;
    const lane = lanes[at];
    if (!lane) return;
    this.select({lane, index: Math.min(lane.n - 1, after(lane.end, middle))}, true);
  }
  zoomToSelected() {
    const s = this.selected;
    if (!s) return;
    const size = Math.max(100, s.lane.end[s.index] - s.lane.start[s.index]);
    this.view(s.lane.start[s.index] - size * 0.5, s.lane.end[s.index] + size * 0.5);
  }

  // -- search --
  find(text) {
    const needle = text.trim().toLowerCase();
    if (!needle) {
      this.matches = null;
      this.found = 0;
      byId('find-count').textContent = '';
      this.redraw();
      return;
    }
    const {names} = this.model.head;
    this.matches = new Uint8Array(names.length);
    names.forEach(([, name], i) => { this.matches[i] = name.toLowerCase().includes(needle) ? 1 : 0; });
    let found = 0, total = 0;
    for (const lane of this.model.lanes) {
      lane.found = new Uint32Array(lane.n + 1);  // matches before the event of this index
      for (let i = 0; i < lane.n; ++i) {
        const is = this.matches[lane.name[i]];
        lane.found[i + 1] = lane.found[i] + is;
        if (is) total += lane.end[i] - lane.start[i];
      }
      found += lane.found[lane.n];
    }
    this.found = found;
    byId('find-count').textContent = found ? `${count(found)} found, ${time(total / 1e6)} in all` : 'nothing found';
    this.redraw();
  }
  // The nearest match in time before or behind the selected event, in any lane.
  findNext(by) {
    if (!this.matches || !this.found) return;
    const {lanes} = this.model, s = this.selected;
    const now = s ? s.lane.start[s.index] : this.from, at = s ? lanes.indexOf(s.lane) : -1;
    let best = null, bestKey = null;
    lanes.forEach((lane, number) => {
      let i = after(lane.start, now);
      // Behind `now`, or at `now` in a later lane; the other way round going back.
      if (by > 0) {
        while (i > 0 && lane.start[i - 1] === now && number > at) --i;
        while (i < lane.n && !this.matches[lane.name[i]]) ++i;
      } else {
        --i;
        while (i >= 0 && lane.start[i] === now && number >= at) --i;
        while (i >= 0 && !this.matches[lane.name[i]]) --i;
      }
      if (i < 0 || i >= lane.n) return;
      const key = lane.start[i];
      if (best === null || (by > 0 ? key < bestKey : key >= bestKey)) [best, bestKey] = [{lane, index: i}, key];
    });
    if (best) this.select(best, true);
  }
}

let timeline = null;
const lanesBox = byId('lanes');
function point(event) {
  const box = byId('canvas').getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}
function connectTimeline() {
  const canvas = byId('canvas');
  let drag = null;
  canvas.addEventListener('pointerdown', (event) => {
    if (!timeline || event.button !== 0) return;
    lanesBox.focus({preventScroll: true});
    canvas.setPointerCapture(event.pointerId);
    drag = {x: event.clientX, y: event.clientY, from: timeline.from, to: timeline.to, scroll: lanesBox.scrollTop, moved: false};
  });
  canvas.addEventListener('pointermove', (event) => {
    if (!timeline) return;
    if (!drag) {
      const hit = timeline.eventAt(...point(event));
      canvas.title = hit ? `${timeline.model.head.names[hit.lane.name[hit.index]][1].slice(0, 200)}\n${time((hit.lane.end[hit.index] - hit.lane.start[hit.index]) / 1e6)}` : '';
      return;
    }
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag.moved = true;
    const by = dx / (timeline.width - timeline.gutter) * (drag.to - drag.from);
    timeline.view(drag.from - by, drag.to - by);
    lanesBox.scrollTop = drag.scroll - dy;
  });
  canvas.addEventListener('pointerup', (event) => {
    if (drag && !drag.moved && timeline) timeline.select(timeline.eventAt(...point(event)));
    drag = null;
  });
  canvas.addEventListener('pointercancel', () => { drag = null; });
  canvas.addEventListener('dblclick', (event) => {
    if (!timeline) return;
    timeline.select(timeline.eventAt(...point(event)));
    timeline.zoomToSelected();
  });
  lanesBox.addEventListener('wheel', (event) => {
    if (!timeline) return;
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (sideways) {
      event.preventDefault();
      timeline.pan((event.deltaX || event.deltaY) / timeline.width);
    } else if (event.ctrlKey || event.metaKey || document.activeElement === lanesBox) {
      event.preventDefault();
      timeline.zoom(Math.exp(Math.max(-0.5, Math.min(0.5, event.deltaY * 0.003))), timeline.timeAt(point(event)[0]));
    }
  }, {passive: false});
  lanesBox.addEventListener('scroll', () => timeline && timeline.redraw());
  lanesBox.addEventListener('keydown', (event) => {
    if (!timeline || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      ArrowLeft: () => timeline.pan(-0.15), ArrowRight: () => timeline.pan(0.15), a: () => timeline.pan(-0.15), d: () => timeline.pan(0.15),
      '+': () => timeline.zoom(0.7), '=': () => timeline.zoom(0.7), w: () => timeline.zoom(0.7),
      '-': () => timeline.zoom(1 / 0.7), s: () => timeline.zoom(1 / 0.7),
      0: () => timeline.view(0, timeline.span), ',': () => timeline.neighbour(-1), '.': () => timeline.neighbour(1),
      ArrowUp: () => timeline.moveLane(-1), ArrowDown: () => timeline.moveLane(1), Enter: () => timeline.zoomToSelected(),
      Escape: () => timeline.select(null), PageUp: () => timeline.moveStep(-1), PageDown: () => timeline.moveStep(1),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  const map = byId('minimap');
  const jump = (event) => {
    if (!timeline || !(event.buttons & 1)) return;
    const box = map.getBoundingClientRect(), size = timeline.to - timeline.from;
    const middle = (event.clientX - box.left) / box.width * timeline.span;
    timeline.view(middle - size / 2, middle + size / 2);
  };
  map.addEventListener('pointerdown', (event) => {
    map.setPointerCapture(event.pointerId);
    jump(event);
  });
  map.addEventListener('pointermove', jump);
  for (const [id, act] of [['zoom-in', () => timeline.zoom(0.5)], ['zoom-out', () => timeline.zoom(2)],
                           ['zoom-all', () => timeline.view(0, timeline.span)], ['step-back', () => timeline.moveStep(-1)],
                           ['step-next', () => timeline.moveStep(1)], ['find-back', () => timeline.findNext(-1)], ['find-next', () => timeline.findNext(1)]]) {
    byId(id).addEventListener('click', () => timeline && act());
  }
  byId('find').addEventListener('input', () => timeline && timeline.find(byId('find').value));
  byId('find').addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && timeline) timeline.findNext(event.shiftKey ? -1 : 1);
  });
  new ResizeObserver(() => timeline && timeline.resize()).observe(byId('timeline'));
  onTheme.push(() => {
    if (!timeline) return;
    timeline.colours();
    timeline.draw();
  });
}

async function showTimeline(index, head) {
  timeline = null;
  page.timeline = null;
  const note = byId('timeline-note');
  byId('event').replaceChildren();
  byId('lanes-table').replaceChildren();
  byId('timeline-legend').replaceChildren();
  if (!head || !head.events) {
    note.textContent = 'There is no event to show.';
    return;
  }
  note.textContent = 'Unpacking …';
  let model;
  try {
    model = decode(head, await unpack('columns-' + index));
  } catch (error) {
    note.textContent = error.message;
    return;
  }
  if (page.process !== index) return;  // another was chosen meanwhile
  page.timeline = timeline = new Timeline(model);
  const left = head.left_out ? ` ${count(head.left_out)} more were left out for size${head.cut_ns === null ? '' : `: calls and work from ${time(head.cut_ns / 1e6)} on`}.` : '';
  const outside = head.calls_outside ? ` ${count(head.calls_outside)} calls outside of the judged windows are not shown.` : '';
  note.textContent = `${count(head.events)} events in ${time(head.span_ns / 1e6)}.${left}${outside} Where many share a pixel, the height of the column is the share of time that they cover.`;
  const used = [...new Set(head.names.map(([kind]) => kind))].sort((a, b) => a - b);
  const seen = new Map();  // by colour: what has it
  for (const kind of used) {
    const idle = kind >= firstIdle && head.idle_classes[kind - firstIdle];
    const colour = idle || kindColours[kind];
    seen.set(colour, (seen.get(colour) || []).concat(idle ? 'idle: ' + idleTitles[idle] : kindNames[kind]));
  }
  byId('timeline-legend').replaceChildren(make('ul', {class: 'legend', 'aria-label': 'Colours of the timeline'},
      ...[...seen].map(([colour, titles]) => make('li', {}, swatch(colour), titles.join(', ')))));
  byId('lanes-table').replaceChildren(table('Lanes', [
    {title: 'lane', value: (l) => l.label + (l.depth ? ` (overlapping, ${l.depth})` : '')},
    {title: 'events', value: (l) => l.n, text: (l) => count(l.n), number: true},
    {title: 'covered', value: (l) => l.sum[l.n], text: (l) => time(l.sum[l.n] / 1e6), number: true},
    {title: 'share of the span', value: (l) => l.sum[l.n] / head.span_ns, text: (l) => percent(l.sum[l.n] / head.span_ns), number: true},
    {title: 'longest', value: (l) => longest(l), text: (l) => time(longest(l) / 1e6), number: true},
  ], model.lanes, {id: 'table-lanes'}));
  timeline.describe();
  if (byId('find').value) timeline.find(byId('find').value);
}
function longest(lane) {
  let most = 0;
  for (let i = 0; i < lane.n; ++i) most = Math.max(most, lane.end[i] - lane.start[i]);
  return most;
}

// ---- flame graphs --------------------------------------------------------------------------------

const flameTitles = {idle: 'idle time of the GPU', device: 'device time', launches: 'launches'};
let flames = null;
function showFlame(root = null) {
  const box = byId('flame'), which = byId('flame-of').value;
  const flame = flames && flames[which];
  const details = byId('flame-details');
  const whole = flame ? flame.root : null;
  byId('flame-note').textContent = `Of the judged steps, by stack: ${flameTitles[which] || ''}. The widest frames cost most; colours are stronger in the program’s own files.`;
  if (!whole || !whole.value) {
    box.replaceChildren();
    box.style.height = '0';
    details.textContent = 'There is nothing to show.';
    return;
  }
  root = root || whole;
  const text = (value) => flame.unit === 'ns' ? time(value / 1e6) : count(value);
  const buttons = [], rowHeight = 22;
  let deepest = 0;
  const width = box.clientWidth || 800;
  const place = (node, left, share, level, parent) => {
    // Narrower than this nothing can be seen or hit.
    if (share * width < 1.5) return;
    deepest = Math.max(deepest, level);
    const says = `${node.name}: ${text(node.value)}, ${percent(node.value / whole.value)} of all`;
    const button = styled(make('button', {
      type: 'button', class: node.user ? 'frame user' : node === whole || node.name.startsWith('(') ? 'frame rest' : 'frame',
      role: 'treeitem', 'aria-level': level + 1, 'aria-label': says, title: says, tabindex: buttons.length ? '-1' : '0',
      'aria-expanded': node.children ? 'true' : null, 'aria-selected': 'false',
      onclick: () => showFlame(node), onfocus: () => { details.textContent = says; },
      onmouseenter: () => { details.textContent = says; },
    }, share * width > 30 ? node.name : ''), {left: `${100 * left}%`, width: `${100 * share}%`, top: `${level * rowHeight + 1}px`});
    const item = {button, level, parent, children: []};
    if (parent) parent.children.push(item);
    button.addEventListener('keydown', (event) => {
      const beside = (by) => {
        const same = buttons.filter((other) => other.level === level);
        return same[same.indexOf(item) + by];
      };
      const to = {ArrowUp: () => item.parent, ArrowDown: () => item.children[0], ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
                  Home: () => buttons[0], Escape: () => { showFlame(); return buttons[0] && byId('flame').firstElementChild && null; }}[event.key];
      if (!to) return;
      event.preventDefault();
      const target = to();
      if (!target) {
        if (event.key === 'Escape') box.firstElementChild.focus();
        return;
      }
      for (const other of buttons) other.button.tabIndex = -1;
      target.button.tabIndex = 0;
      target.button.focus();
    });
    buttons.push(item);
    let at = left;
    for (const child of node.children || []) {
      const part = share * child.value / node.value;
      place(child, at, part, level + 1, item);
      at += part;
    }
  };
  const focused = box.contains(document.activeElement);
  place(root, 0, 1, 0, null);
  box.replaceChildren(...buttons.map((item) => item.button));
  box.style.height = `${(deepest + 1) * rowHeight + 4}px`;
  byId('flame-reset').disabled = root === whole;
  details.textContent = `${root.name}: ${text(root.value)}, ${percent(root.value / whole.value)} of all. A click on a frame widens it.`;
  if (focused) box.firstElementChild.focus();
}
byId('flame-of').addEventListener('change', () => showFlame());
byId('flame-reset').addEventListener('click', () => showFlame());

// ---- the page ------------------------------------------------------------------------------------

const page = {process: 0, report, timeline: null, ready: null};
function show(index) {
  page.process = index;
  const p = processes[index];
  const warnings = byId('warnings');
  if (!p) {
    byId('command').textContent = report.path;
    warnings.replaceChildren(make('p', {class: 'warning'}, 'Nothing was recorded.'));
    for (const id of ['steps', 'timeline', 'flames', 'tables', 'rests']) byId(id).hidden = true;
    return Promise.resolve();
  }
  const head = parse('timeline-' + index);
  byId('command').textContent = p.command || p.executable;
  facts(p, head);
  warnings.replaceChildren(...p.warnings.map((text) => make('p', {class: 'warning'}, text)));
  hero(p);
  findings(p);
  predictions(p);
  strip(p);
  splitTable(p);
  allTables(p);
  rests(p, head);
  flames = parse('flames-' + index);
  byId('flame-of').replaceChildren(...Object.keys(flames || {}).map((id) => make('option', {value: id}, flameTitles[id] || id)));
  showFlame();
  return showTimeline(index, head);
}
function processTable() {
  if (processes.length < 2) return;
  byId('processes').replaceChildren(make('h2', {}, 'Processes'), table('All processes', [
    {title: 'process', value: (p) => p.pid, node: (p) => make('button', {type: 'button', onclick: () => choose(processes.indexOf(p))},
        (p.rank === null ? '' : `rank ${p.rank}, `) + `pid ${p.pid}`)},
    {title: 'host', value: (p) => p.host},
    {title: 'device', value: (p) => p.device, text: (p) => p.device === null ? 'none' : `GPU ${p.device}`},
    {title: 'GPU busy', value: (p) => p.busy_share, text: (p) => percent(p.busy_share), number: true},
    {title: 'step (mean)', value: (p) => p.mean_step_ms, text: (p) => time(p.mean_step_ms), number: true},
    {title: 'first finding', value: (p) => p.findings.length ? p.findings[0].title : ''},
    {title: 'warnings', value: (p) => p.warnings.length, number: true},
  ], processes, {id: 'table-processes'}));
  if (report.helpers_without_cuda_calls) {
    byId('processes').append(make('p', {class: 'note'}, `${count(report.helpers_without_cuda_calls)} more processes made no CUDA call.`));
  }
}
const choice = byId('process');
function choose(index) {
  choice.value = String(index);
  page.ready = show(index);
  byId('command').scrollIntoView();
}
processes.forEach((p, index) => choice.append(make('option', {value: index},
    (p.rank === null ? '' : `rank ${p.rank}: `) + `pid ${p.pid}, ${percent(p.busy_share)} busy, ${(p.command || p.executable).slice(0, 60)}`)));
byId('process-label').hidden = processes.length < 2;
choice.addEventListener('change', () => { page.ready = show(Number(choice.value)); });
processTable();
connectTimeline();
page.ready = show(0);
// For scripts and for the curious: the report as data, and the timeline.
window.gpubusy = page;
})();
