#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small image classifier on made-up pictures, in plain PyTorch.

A teaching example of the most common reason for an idle GPU. The classic mistake:

    python examples/train.py --workers 0 --slow-transforms

Every picture is decoded and augmented by the one process that should feed the GPU. The cure:

    python examples/train.py --workers 2 --fast-transforms --pin-memory

Pictures are decoded once, workers only crop and flip bytes, and the copy to the GPU overlaps with
the step before.
"""

import argparse
import io
import random

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10


def make_pictures(count, size):
    """JPEG bytes of noise in a colour that tells the class, and the classes."""
    rng = np.random.default_rng(0)
    pictures = []
    for index in range(count):
        label = index % CLASSES
        tint = np.array([label / CLASSES, 1 - label / CLASSES, 0.5])
        coarse = rng.random((size // 16, size // 16, 3)) * 0.5 + tint * 0.5
        image = Image.fromarray((coarse * 255).astype(np.uint8)).resize((size, size))
        data = io.BytesIO()
        image.save(data, "JPEG", quality=90)
        pictures.append((data.getvalue(), label))
    return pictures


class SlowPictures(Dataset):
    """Decodes and augments on the CPU, picture by picture, every time."""

    def __init__(self, pictures, length, size):
        self.pictures, self.length, self.size = pictures, length, size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        data, label = self.pictures[index % len(self.pictures)]
        image = decode(data)
        image = augment(image, self.size)
        return to_tensor(image), label


def decode(data):
    return Image.open(io.BytesIO(data)).convert("RGB")


def augment(image, size):
    image = image.rotate(random.uniform(-15, 15), resample=Image.Resampling.BICUBIC)
    image = image.filter(ImageFilter.GaussianBlur(1.5))
    image = ImageEnhance.Color(image).enhance(random.uniform(0.6, 1.4))
    image = ImageEnhance.Contrast(image).enhance(random.uniform(0.6, 1.4))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.resize((size, size), Image.Resampling.LANCZOS)


def to_tensor(image):
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


class FastPictures(Dataset):
    """Decoded once, before the training; a picture costs a crop and sometimes a flip of bytes."""

    def __init__(self, pictures, length, size):
        side = size + size // 8
        self.tensors = [to_tensor(decode(data).resize((side, side))) for data, _ in pictures]
        self.labels = [label for _, label in pictures]
        self.length, self.size, self.margin = length, size, side - size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        index %= len(self.tensors)
        top, left = random.randint(0, self.margin), random.randint(0, self.margin)
        image = self.tensors[index][:, top : top + self.size, left : left + self.size]
        if random.random() < 0.5:
            image = image.flip(2)
        return image, self.labels[index]


def make_model(width):
    """A small convnet in the manner of VGG: three stages, each of half the resolution."""
    layers, channels = [], 3
    for stage in (1, 2, 4):
        for _ in range(2):
            layers += [nn.Conv2d(channels, stage * width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(stage * width), nn.ReLU(inplace=True)]
            channels = stage * width
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--width", type=int, default=192, help="channels of the first stage")
    parser.add_argument("--pictures", type=int, default=128, help="different pictures")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader processes")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--slow-transforms", dest="fast", action="store_false", default=False)
    speed.add_argument("--fast-transforms", dest="fast", action="store_true")
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    random.seed(0)
    torch.manual_seed(0)
    device = torch.device(args.device)
    pictures = make_pictures(args.pictures, 256)
    kind = FastPictures if args.fast else SlowPictures
    loader = DataLoader(
        kind(pictures, args.steps * args.batch_size, args.image_size),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=args.pin_memory,
        prefetch_factor=4 if args.workers else None,
    )
    model = make_model(args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    print(f"training on {device}, {args.steps} steps of {args.batch_size} pictures", flush=True)
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=args.pin_memory)
        labels = labels.to(device, non_blocking=args.pin_memory)
        images = images.float().div_(127.5).sub_(1.0)  # bytes are cheaper to move than floats
        loss = loss_of(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
