#!/usr/bin/env python3
"""Writes unicode_classes.h: python3 dev/data/unicode_classes.py > dev/data/unicode_classes.h"""
import unicodedata


def ranges(category):
    inside = [unicodedata.category(chr(c))[0] == category for c in range(0x110000)] + [False]
    start = None
    for c in range(0x80, 0x110001):
        if inside[c] and start is None:
            start = c
        if not inside[c] and start is not None:
            yield start, c - 1
            start = None


def table(name, category):
    print(f"static const uint32_t {name}[][2] = {{")
    line = "   "
    for first, last in ranges(category):
        item = f" {{ {first:#x}, {last:#x} }},"
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")


version = unicodedata.unidata_version
print(f"""// Code points above ASCII that are letters (general category L) or numbers (N), in Unicode {version}: for the pattern
// that cuts text before byte-pair encoding (bpe.c). Made by dev/data/unicode_classes.py.
#ifndef DEV_DATA_UNICODE_CLASSES_H
#define DEV_DATA_UNICODE_CLASSES_H

#include <stdint.h>

// clang-format off""")
table("LETTERS", "L")
print()
table("NUMBERS", "N")
print("// clang-format on\n\n#endif")
