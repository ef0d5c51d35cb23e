#!/usr/bin/env python3
"""Keeps the tables in dev/docs/gpu-status.md that say of each kernel and each call how far it has been checked.

    gpu_status.py            fails if the tables in the document say more than the last checks have found, or lack a row
    gpu_status.py --write    writes them

The checks write evidence to build/evidence/*.txt, a line "LEVEL PRECISION GPU SOURCE NAME" for each kernel or call that
has passed; a dash stands for what has no meaning:

    compiled   check_cuda.sh: it compiles, and keeps the rules of check_kernels.awk; a call's result is used
    sass       check_cuda.sh, where cuobjdump is found: its machine code keeps the rules of check_sass.awk
    emulated   make test: the emulated GPU, or the CPU's CUDA and NCCL, have executed it (dev/device/cpu/evidence.cpp)
    ptx        check_ptx.sh: nvcc's PTX of it has been executed
    gpu        nothing writes this yet

A level for which there is no evidence was not checked in this run. The program says so, and neither compares nor
changes what the document says about it. Without `compiled`, which gives the tables their rows, it exits with 3.
"""
import collections
import glob
import re
import subprocess
import sys

DOCUMENT = 'dev/docs/gpu-status.md'
BEGIN, END = '<!-- evidence: begin -->', '<!-- evidence: end -->'
CALL = re.compile(r'(cublas|cudnn|cuda|nccl)[A-Z]\w*')
LIBRARIES = {'cuda': 'CUDA', 'cublas': 'cuBLASLt', 'nccl': 'NCCL', 'cudnn': 'cuDNN'}
LEVELS = {'compiled': 'compiled', 'sass': 'machine code', 'emulated': 'emulated', 'ptx': 'PTX executed',
          'gpu': 'on a GPU'}
CALL_LEVELS = {'compiled': 'compiled', 'emulated': 'executed on a stand-in', 'gpu': 'on a GPU'}
# What a launch is called on the CPU.
SAME = {'cuda_on_cpu_launch': 'cudaLaunchKernelExC', 'cuda_on_cpu_max_dynamic_shared': 'cudaFuncSetAttribute'}

Line = collections.namedtuple('Line', 'level precision gpu source name')


def read_evidence():
    text = ''.join(open(path).read() for path in sorted(glob.glob('build/evidence/*.txt')))
    text = subprocess.run(['c++filt', '-p'], input=text, capture_output=True, text=True, check=True).stdout
    lines = {Line(*line.split(' ', 4)) for line in text.splitlines()}
    return {line._replace(name=SAME.get(line.name, line.name)) for line in lines}


def gpus_of(lines, level):
    return sorted({l.gpu for l in lines if l.level == level and l.gpu != '-'}, key=lambda g: int(g[3:]))


def kernel_rows(lines):
    """{(source, kernel): [variants, cell of each level]}"""
    compiled = [l for l in lines if l.level == 'compiled' and not CALL.fullmatch(l.name)]
    source = {l.name: l.source for l in compiled}

    # The module's kernels do not depend on the precision of the build.
    def variant(line):
        return line.name if source[line.name].startswith('zero/') else (line.precision, line.name)
    variants = collections.defaultdict(set)
    for l in compiled:
        variants[l.source, l.name.split('<')[0]].add(variant(l))
    has = collections.defaultdict(set)      # (level, gpu) -> variants
    for l in lines:
        if l.name in source:
            has[l.level, l.gpu].add(variant(l))
    rows = {}
    for key, wanted in sorted(variants.items()):
        cells = [str(len(wanted))]
        for level in LEVELS:
            found = [has[level, gpu] for gpu in gpus_of(lines, level)] or [has[level, '-']]
            n = len(wanted.intersection(*found))
            cells.append('no' if n == 0 else 'yes' if n == len(wanted) else f'{n} of {len(wanted)}')
        rows[key] = cells
    return rows


def call_rows(lines):
    """{(library, call): cell of each level}"""
    has = {(l.level, l.name) for l in lines}
    calls = {l.name for l in lines if l.level == 'compiled' and CALL.fullmatch(l.name)}
    return {(LIBRARIES[CALL.match(name)[1]], name): ['yes' if (level, name) in has else 'no' for level in CALL_LEVELS]
            for name in sorted(calls)}


def read_tables(text):
    """The same rows, from the document."""
    kernels, calls = {}, {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip('|').split('|')]
        if len(cells) == len(LEVELS) + 3 and re.fullmatch(r'\d+', cells[2]):
            kernels[cells[0], cells[1].strip('`')] = cells[2:]
        elif len(cells) == len(CALL_LEVELS) + 2 and cells[0] in LIBRARIES.values():
            calls.update({(cells[0], name): cells[2:] for name in re.findall(r'`(\w+)`', cells[1])})
    return kernels, calls


def keep(rows, old, column):
    for key, cells in rows.items():
        cells[column] = old.get(key, ['no'] * len(cells))[column]


def tables(kernels, calls, gpus):
    lines = ['; '.join(f'{text}: {", ".join(gpus[level])}' for level, text in LEVELS.items() if gpus[level]) + '.', '',
             '| source | kernel | variants | ' + ' | '.join(LEVELS.values()) + ' |', '|---' * (len(LEVELS) + 3) + '|']
    lines += [f'| {source} | `{name}` | ' + ' | '.join(cells) + ' |' for (source, name), cells in kernels.items()]
    lines += ['', '| library | calls | ' + ' | '.join(CALL_LEVELS.values()) + ' |',
              '|---' * (len(CALL_LEVELS) + 2) + '|']
    groups = collections.defaultdict(list)
    for (library, name), cells in calls.items():
        groups[library, tuple(cells)].append(f'`{name}`')
    order = list(LIBRARIES.values())
    for (library, cells), names in sorted(groups.items(), key=lambda g: (order.index(g[0][0]), g[1][0])):
        while names:    # lines of at most 120 columns
            n = 1
            while n < len(names) and len(' | '.join((library, ', '.join(names[:n + 1])) + cells)) <= 116:
                n += 1
            lines.append(f'| {library} | {", ".join(names[:n])} | ' + ' | '.join(cells) + ' |')
            names = names[n:]
    return '\n'.join(lines)


def share(cell):
    n, _, of = cell.partition(' of ')
    return int(n) / int(of) if of else {'no': 0, 'yes': 1}.get(cell, 0)


def wrong_rows(old, new):
    """Rows that are not there any more or not yet, and those that say more than was found."""
    both = old.keys() & new.keys()
    return sorted((old.keys() ^ new.keys()) |
                  {key for key in both if any(share(a) > share(b) for a, b in zip(old[key], new[key]))})


def main():
    lines = read_evidence()
    checked = {l.level for l in lines}
    if 'compiled' not in checked:
        print('no evidence in build/evidence: run dev/test/cuda/check_cuda.sh on a machine with nvcc')
        return 3
    text = open(DOCUMENT).read()
    before, rest = text.split(BEGIN)
    committed, after = rest.split(END)
    old_kernels, old_calls = read_tables(committed)
    kernels, calls = kernel_rows(lines), call_rows(lines)
    gpus = {level: gpus_of(lines, level) for level in LEVELS}
    for level, words in LEVELS.items():
        if level in checked:
            continue
        print(f'NOT CHECKED in this run: {words}; what the document says about it stays')
        keep(kernels, old_kernels, 1 + list(LEVELS).index(level))
        if level in CALL_LEVELS:
            keep(calls, old_calls, list(CALL_LEVELS).index(level))
        before_table = re.search(rf'\b{words}: ([^;.]*)[;.]', committed)
        gpus[level] = before_table[1].split(', ') if before_table else []
    # Calls of a library that is not here have not been compiled in this run.
    for library in LIBRARIES.values():
        if not any(key[0] == library for key in calls):
            print(f'NOT CHECKED in this run: calls of {library}; what the document says about them stays')
            calls.update({key: cells for key, cells in old_calls.items() if key[0] == library})
    now = '\n\n' + tables(kernels, dict(sorted(calls.items())), gpus) + '\n\n'
    if sys.argv[1:] == ['--write']:
        open(DOCUMENT, 'w').write(before + BEGIN + now + END + after)
        return 0
    if now == committed:
        print(f'the tables of {DOCUMENT} are what was found: {len(kernels)} kernels, {len(calls)} calls')
        return 0
    for line in sorted(set(now.splitlines()) ^ set(committed.splitlines())):
        print(('found:     ' if line in now.splitlines() else 'committed: ') + line)
    wrong = wrong_rows(old_kernels, kernels) + wrong_rows(old_calls, calls)
    for source, name in wrong:
        print(f'wrong: {source}, {name}')
    print(f'{DOCUMENT} says {"more" if wrong else "less"} than what was found: {sys.argv[0]} --write')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
