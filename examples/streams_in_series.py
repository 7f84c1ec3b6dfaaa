#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two independent encoders run one after the other, though both would fit on the GPU together.

Both are frozen; a head is trained on what they say. Each encoder's kernels leave most of the GPU empty, and each has a stream of its own, but the second
stream waits for the first, for no reason. Cure: no wait between them; join only where both results
are needed.
"""

import torch

import common


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    encoders = [common.make_model(layers=16, width=256) for _ in range(2)]
    head = common.make_model(layers=1, width=256)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    images = torch.rand(32, 256, device=common.DEVICE)
    joined = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in encoders]

    for _ in range(args.steps):
        results = []
        for index, (encoder, stream) in enumerate(zip(encoders, streams)):
            stream.wait_stream(joined)
            if index == 1 and not args.cured:
                stream.wait_stream(streams[0])  # MISTAKE: encoder 1 does not need encoder 0
            with torch.cuda.stream(stream), torch.no_grad():
                results.append(encoder(images))  # MISTAKE shows here
        for stream in streams:
            joined.wait_stream(stream)
        loss = head(results[0] + results[1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
