# SPDX-License-Identifier: Apache-2.0
"""Reads what docs/html-report.md says is in a page, without the page's own script."""

import base64
import gzip
import html.parser
import json
from dataclasses import dataclass, field


class _Parser(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.scripts = []  # (attributes, text)
        self.policy = None
        self._open = False

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]
        if tag == "script":
            self.scripts.append((attributes, ""))
            self._open = True

    def handle_endtag(self, tag):
        if tag == "script":
            self._open = False

    def handle_data(self, data):
        if self._open:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


@dataclass
class Event:
    start: int
    duration: int
    name: str
    kind: int
    bytes: int = 0
    call: int = 0
    stack: list = field(default_factory=list)
    result: int = 0
    idle: dict = field(default_factory=dict)


def _varints(data):
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0
    assert shift == 0, "a number is cut short"


class Page:
    def __init__(self, path):
        self.text = path.read_text(encoding="utf-8")
        parser = _Parser()
        parser.feed(self.text)
        self.policy = parser.policy
        self.scripts = parser.scripts
        self.by_id = {a["id"]: (a, text) for a, text in parser.scripts if "id" in a}
        self.report = json.loads(self.by_id["report"][1])

    def head(self, process=0):
        return json.loads(self.by_id[f"timeline-{process}"][1])

    def flames(self, process=0):
        return json.loads(self.by_id[f"flames-{process}"][1])

    def lanes(self, process=0):
        """[(lane, [Event, …]), …]"""
        attributes, text = self.by_id[f"columns-{process}"]
        data = base64.b64decode(text, validate=True)
        if attributes["type"] == "application/gzip":
            data = gzip.decompress(data)
        numbers = _varints(data)
        head = self.head(process)

        def column(count):
            return [next(numbers) for _ in range(count)]

        parents, frames = column(head["nodes"]), column(head["nodes"])

        def stack(node):
            out = []
            while node:
                out.append(head["frames"][frames[node - 1]])
                node = parents[node - 1]
            return out

        out = []
        for lane in head["lanes"]:
            count = lane["count"]
            gaps, durations, names = column(count), column(count), column(count)
            events, now = [], 0
            for gap, duration, name in zip(gaps, durations, names):
                kind, text = head["names"][name]
                events.append(Event(now + gap, duration, text, kind))
                now += gap + duration
            if lane["kind"] == "idle":
                for cause in head["idle_classes"]:
                    for event, ns in zip(events, column(count)):
                        event.idle[cause] = ns
                for event, node in zip(events, column(count)):
                    event.stack = stack(node)
                column(count)  # where the host came from
            elif lane["kind"] != "steps":
                for event, size in zip(events, column(count)):
                    event.bytes = size
                if lane["kind"] != "ranges":
                    call = 0
                    for event, step in zip(events, column(count)):
                        call += (step >> 1) ^ -(step & 1)
                        event.call = call
                if lane["kind"] == "calls":
                    for event, node in zip(events, column(count)):
                        event.stack = stack(node)
                    for event, result in zip(events, column(count)):
                        event.result = result
            out.append((lane, events))
        assert next(numbers, None) is None, "there is more than the head tells"
        return out
