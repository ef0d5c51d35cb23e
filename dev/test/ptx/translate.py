#!/usr/bin/env python3
"""Translates nvcc's PTX into C++ that runs on the emulated GPU (machine.h).

    translate.py --output DIR kernels.ptx:zero/kernels.cu ...        FILE:SOURCE, the .cu file that it was made from
    translate.py --output DIR --fault 3 --entry REGEX --replace PATTERN TEXT [--nth 2] FILE:SOURCE

Writes DIR/ptx_0.cpp, ptx_1.cpp, ... and DIR/entries.txt, a line `hash source name` for each entry. Entries with the
same translation, as those of a header's kernel in several programs, become one function, and have the same hash.

With --fault: plants a fault (check_ptx.sh). In the entry whose name matches REGEX, the nth match of PATTERN is
replaced (0: all), and this entry alone is written, to DIR/fault_3.cpp; it takes the place of the right one in programs
that run with PTX_FAULT=3.

A register is a local variable of the type that it is declared with, a label is a label, an instruction is a statement.
An instruction, modifier, operand or directive that is not known here is an error: nothing is skipped.
"""
import argparse
import hashlib
import re
import sys

from ptx_file import Error, read, size, split, statements, unsigned

C_TYPE = {'pred': 'bool', 'f32': 'float', 'f64': 'double'}
for bits in (8, 16, 32, 64):
    C_TYPE.update({f'b{bits}': f'uint{bits}_t', f'u{bits}': f'uint{bits}_t', f's{bits}': f'int{bits}_t'})
POISON = {'bool': 'false', 'uint16_t': '0xdead', 'uint32_t': '0xdeadbeef', 'uint64_t': '0xdeadbeefdeadbeef',
          'float': 'NAN', 'double': 'NAN'}
SPECIAL = {f'%{ptx}.{d}': f'{c}.{d}' for d in 'xyz' for ptx, c in
           (('tid', 'threadIdx'), ('ntid', 'blockDim'), ('ctaid', 'blockIdx'), ('nctaid', 'gridDim'))}
DYNAMIC = 15            # PTX_DYNAMIC of machine.h
CHUNK_LINES = 12000     # of a C++ file

# ----------------------------------------------------------------------------------------------------------------------
# Instructions

COMPARE = {'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>=', 'lo': '<', 'ls': '<=', 'hi': '>',
           'hs': '>='}
SHUFFLES = {'bfly': 'XOR', 'down': 'DOWN', 'up': 'UP'}


class Function:
    """Translates one entry."""

    def __init__(self, entry):
        self.entry, self.registers, self.used, self.out, self.labels = entry, {}, set(), [], {}
        self.shared = {}        # name -> number
        self.modifiers = []     # of the instruction at hand, those that its method has not taken yet
        for name, (_, bytes_) in entry.shared.items():
            if bytes_ is None:
                self.shared[name] = DYNAMIC
        for line, text in statements(entry.body, entry.line):
            try:
                self.statement(line, text)
            except (Error, KeyError, IndexError, ValueError) as e:
                raise Error(f'{entry.source}, {entry.name}, line {line}: "{text}": {e!r}') from e

    # Statics are numbered as they are met: those of the module when an entry uses them.
    def number(self, name):
        if name not in self.shared:
            self.shared[name] = sum(1 for n in self.shared.values() if n != DYNAMIC)
        return self.shared[name]

    def variables(self):
        named = sorted((n, name) for name, n in self.shared.items() if n != DYNAMIC)
        return [(self.entry.shared[name][1], self.entry.shared[name][0]) for _, name in named]

    def text(self):
        declarations = {}
        for name in sorted(self.used):
            declarations.setdefault(self.registers[name], []).append(name)
        lines = [f'    {t} {", ".join(f"{n} = {POISON[t]}" for n in names)};' for t, names in declarations.items()]
        return '\n'.join(lines + self.out)

    def statement(self, line, text):
        if text.endswith(':'):
            self.out.append(f'{self.label(text[:-1])}:;')
        elif text in '{}':
            self.out.append(f'    {text}')
        elif text.startswith('.'):
            self.directive(text)
        else:
            m = re.fullmatch(r'(?:@(!?)(%\w+) )?([\w.:]+)(?: (.*))?', text)
            if not m:
                raise Error('not an instruction')
            guard = f'if ({m[1]}{self.value(m[2], "pred")}) ' if m[2] else ''
            self.line = f'AT({line})'
            op, *self.modifiers = m[3].split('.')
            if op not in INSTRUCTIONS:
                raise Error('unknown instruction')
            c = INSTRUCTIONS[op](self, op, *split(m[4] or ''))
            if self.modifiers:
                raise Error(f'unknown modifiers {self.modifiers}')
            self.out.append(f'    {guard}{{ {c} }}')

    def directive(self, text):
        m = re.fullmatch(r'\.reg \.(\w+) %(\w+)(?:<(\d+)>)?', text)
        if m:
            if m[3]:
                self.registers.update({f'{m[2]}{i}': C_TYPE[m[1]] for i in range(int(m[3]))})
            else:       # of an inner block, or of the whole entry: nothing jumps over it
                self.registers[m[2]] = C_TYPE[m[1]]
                self.used.add(m[2])
            return
        m = re.fullmatch(r'\.shared \.align (\d+) \.b8 ([\w$]+)\[(\d+)\]', text)
        if m:
            self.entry.shared[m[2]] = (int(m[1]), int(m[3]))
        elif not text.startswith('.pragma "nounroll"'):
            raise Error('unknown directive')

    def label(self, name):
        return f'L{self.labels.setdefault(name, len(self.labels))}'

    # ---- operands ----

    def register(self, operand):
        name = operand[1:].replace('%', '')
        if not operand.startswith('%') or name not in self.registers:
            raise Error(f'unknown operand {operand}')
        self.used.add(name)
        return name

    def value(self, operand, type_name):
        """The operand as a C++ value of the type."""
        want = C_TYPE[type_name]
        if operand in SPECIAL:
            return f'({want}){SPECIAL[operand]}'
        if operand.startswith('%'):
            name = self.register(operand)
            have = self.registers[name]
            if have == want:
                return name
            if 'float' in (have, want) or 'double' in (have, want):
                return f'ptx_bits<{want}>({name})'
            return f'(({want}){name})'
        if re.fullmatch(r'0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}', operand):
            single = operand[1] in 'fF'
            number = f'uint{32 if single else 64}_t(0x{operand[2:]}u{"" if single else "ll"})'
            return f'ptx_bits<{want}>({number})'
        if re.fullmatch(r'-?(0[xX][0-9a-fA-F]+|\d+)U?', operand):
            if want in ('float', 'double'):
                raise Error(f'integer {operand} as {type_name}')
            return f'(({want}){int(operand.rstrip("U"), 0)}ll)' if int(operand.rstrip('U'), 0) < 1 << 63 else \
                f'(({want}){operand.rstrip("U")}ull)'
        if operand in self.entry.params:
            return f'(({want}){self.entry.params[operand]})'
        if operand in self.entry.shared:
            return f'(({want})(0x{self.number(operand) << 24:x}u))'
        raise Error(f'unknown operand {operand}')

    def assign(self, operand, type_name, expression):
        if operand == '_':
            return f'(void)({expression});'
        name = self.register(operand)
        have, give = self.registers[name], C_TYPE[type_name]
        if have == give:
            return f'{name} = {expression};'
        if 'float' in (have, give) or 'double' in (have, give):
            return f'{name} = ptx_bits<{have}>(({give})({expression}));'
        return f'{name} = ({have})({give})({expression});'

    def take(self, *names):
        """The modifier that is one of these, or None; take it off the list."""
        for m in self.modifiers:
            if m in names:
                self.modifiers.remove(m)
                return m
        return None

    def type(self):
        if not self.modifiers or self.modifiers[-1] not in C_TYPE:
            raise Error('no type')
        return self.modifiers.pop()

    def address(self, operand, space):
        """[register+offset] or [name+offset] as a C++ expression: an offset for param, an address elsewhere."""
        m = re.fullmatch(r'\[([%\w$]+)(?:\+(-?\d+))?\]', operand)
        if not m:
            raise Error(f'unknown address {operand}')
        t = 'u32' if space == 'shared' else 'u64'
        return f'({self.value(m[1], t)} + ({C_TYPE[t]}){m[2] or 0})'

    # ---- arithmetic ----

    def arithmetic(self, op, d, a, b):
        t, sign = self.type(), {'add': '+', 'sub': '-', 'mul': '*'}[op]
        if t[0] == 'f':
            self.take('rn')
            return self.assign(d, t, f'{self.value(a, t)} {sign} {self.value(b, t)}')
        kind = self.take('lo', 'hi', 'wide') if op == 'mul' else 'lo'
        if kind == 'lo':
            u = unsigned(t)     # 16 bits: as 32, since C++ would make them a signed int
            w = C_TYPE['u32' if u == 'u16' else u]
            return self.assign(d, u, f'({w}){self.value(a, u)} {sign} ({w}){self.value(b, u)}')
        return self.assign(d, *self.product(kind, t, a, b))

    def product(self, kind, t, a, b):
        if kind == 'wide':
            w = f'{t[0]}{2 * int(t[1:])}'
            return w, f'(({C_TYPE[w]}){self.value(a, t)} * ({C_TYPE[w]}){self.value(b, t)})'
        if kind == 'hi':
            return t, f'ptx_mul_hi<{C_TYPE[t]}>({self.value(a, t)}, {self.value(b, t)})'
        raise Error('no .lo, .hi or .wide')

    def mad(self, op, d, a, b, c):
        t, kind = self.type(), self.take('lo', 'hi', 'wide')
        if kind == 'lo':
            t = unsigned(t)
            return self.assign(d, t, f'{self.value(a, t)} * {self.value(b, t)} + {self.value(c, t)}')
        w, product = self.product(kind, t, a, b)
        w = unsigned(w)
        return self.assign(d, w, f'({C_TYPE[w]}){product} + {self.value(c, w)}')

    def fma(self, op, d, a, b, c):
        t, rounding = self.type(), self.take('rn', 'rm')
        f = {('rn', 'f32'): 'fmaf', ('rn', 'f64'): 'fma', ('rm', 'f32'): 'ptx_fma_down'}[rounding, t]
        return self.assign(d, t, f'{f}({self.value(a, t)}, {self.value(b, t)}, {self.value(c, t)})')

    def divide(self, op, d, a, b):
        t = self.type()
        if t[0] == 'f':
            if op != 'div' or not self.take('rn'):
                raise Error('not .rn')
            return self.assign(d, t, f'{self.value(a, t)} / {self.value(b, t)}')
        return self.assign(d, t, f'ptx_{op}<{C_TYPE[t]}>({self.value(a, t)}, {self.value(b, t)})')

    def min_max(self, op, d, a, b):
        t = self.type()
        a, b = self.value(a, t), self.value(b, t)
        if t[0] == 'f':         # of a number and NaN: the number, as in C
            return self.assign(d, t, f'f{op}{"f" if t == "f32" else ""}({a}, {b})')
        return self.assign(d, t, f'{a} {"<" if op == "min" else ">"} {b} ? {a} : {b}')

    def negate(self, op, d, a):
        t = self.type()
        u = unsigned(t)
        return self.assign(d, u, f'-{self.value(a, u)}' if t[0] == 'f' else f'0 - {self.value(a, u)}')

    def absolute(self, op, d, a):
        t = self.type()
        x = self.value(a, t)
        return self.assign(d, t, f'fabs({x})' if t[0] == 'f' else f'{x} < 0 ? 0 - {x} : {x}')

    def root(self, op, d, a):           # sqrt, rcp, rsqrt
        t, exact = self.type(), self.take('rn')
        x = self.value(a, t)
        if not exact and not (self.take('approx') and t == 'f32'):
            raise Error('neither .rn nor .approx.f32')
        if not exact and self.take('ftz'):
            x = f'ptx_flush({x})'
        root = f'sqrt{"f" if t == "f32" else ""}({x})'
        one = C_TYPE[t]
        return self.assign(d, t, {'sqrt': root, 'rcp': f'({one})1 / {x}', 'rsqrt': f'({one})1 / {root}'}[op])

    def power(self, op, d, a):          # 2^a, log2 a: to 2 units in the last place on a GPU, better here
        t = self.type()
        if t != 'f32' or not self.take('approx'):
            raise Error('not .approx.f32')
        y = f'{"exp2f" if op == "ex2" else "log2f"}({self.value(a, t)})'
        return self.assign(d, t, f'ptx_flush({y})' if self.take('ftz') else y)

    # ---- bits, conditions ----

    def logic(self, op, d, a, b):
        t = self.type()
        return self.assign(d, t, f'{self.value(a, t)} {dict(zip(("and", "or", "xor"), "&|^"))[op]} {self.value(b, t)}')

    def invert(self, op, d, a):
        t = self.type()
        return self.assign(d, t, f'{"!" if t == "pred" else "~"}{self.value(a, t)}')

    def shift(self, op, d, a, n):
        t = self.type()
        return self.assign(d, t, f'ptx_{op}<{C_TYPE[t]}>({self.value(a, t)}, {self.value(n, "u32")})')

    def funnel(self, op, d, low, high, n):
        to = self.take('l', 'r')
        if not self.take('wrap') or self.type() != 'b32':
            raise Error('not .wrap.b32')
        f = f'ptx_funnel_{"left" if to == "l" else "right"}'
        return self.assign(d, 'b32', f'{f}({", ".join(self.value(x, "b32") for x in (low, high, n))})')

    def bit_field(self, op, d, *operands):      # bfi, bfe, lop3, prmt
        t = self.type()
        if t not in ('b32', 'u32'):
            raise Error('not of 32 bits')
        return self.assign(d, t, f'ptx_{op}({", ".join(self.value(x, "b32") for x in operands)})')

    def select(self, op, d, a, b, condition):
        t = self.type()
        return self.assign(d, t, f'{self.value(condition, "pred")} ? {self.value(a, t)} : {self.value(b, t)}')

    def compare(self, op, d, a, b):
        t, how = self.type(), self.modifiers.pop(0)
        x, y = self.value(a, t), self.value(b, t)
        nan = f'({x} != {x} || {y} != {y})'
        if how in ('nan', 'num') and t[0] == 'f':
            c = nan if how == 'nan' else f'!{nan}'
        elif t[0] == 'f' and how not in COMPARE:        # equ, neu, ltu, ...: true for NaN
            c = f'{nan} || {x} {COMPARE[how[:-1]]} {y}'
        else:
            c = f'{x} {COMPARE[how]} {y}' + (f' && !{nan}' if how == 'ne' and t[0] == 'f' else '')
        return self.assign(d, 'pred', c)

    # ---- moves, conversions ----

    def move(self, op, d, a):
        t = self.type()
        if a.startswith('{'):
            parts = split(a[1:-1])
            width = 8 * size(t) // len(parts)
            packed = ' | '.join(f'({C_TYPE[t]}){self.value(x, f"b{width}")} << {i * width}'
                                for i, x in enumerate(parts))
            return self.assign(d, t, packed)
        if d.startswith('{'):
            parts = split(d[1:-1])
            width = 8 * size(t) // len(parts)
            whole = f'const {C_TYPE[t]} whole = {self.value(a, t)}; '
            return whole + ' '.join(self.assign(x, f'b{width}', f'(uint{width}_t)(whole >> {i * width})')
                                    for i, x in enumerate(parts))
        return self.assign(d, t, self.value(a, t))

    def convert(self, op, d, *operands):
        if self.modifiers == ['rn', 'bf16x2', 'f32']:
            self.modifiers = []
            high, low = (f'ptx_to_bf16({self.value(x, "f32")})' for x in operands)
            return self.assign(d, 'b32', f'(uint32_t){high} << 16 | {low}')
        if self.modifiers in (['rn', 'bf16', 'f32'], ['f32', 'bf16']):
            to = self.modifiers[-2]
            self.modifiers = []
            return (self.assign(d, 'b16', f'ptx_to_bf16({self.value(*operands, "f32")})') if to == 'bf16' else
                    self.assign(d, 'f32', f'ptx_from_bf16({self.value(*operands, "b16")})'))
        source, to, rounding = self.type(), self.type(), self.take('rn', 'rzi', 'rmi', 'rpi', 'rni', 'sat')
        x = self.value(*operands, source)
        if source[0] == 'f':
            rounded = {'rzi': f'trunc({x})', 'rmi': f'floor({x})', 'rpi': f'ceil({x})', 'rni': f'nearbyint({x})'}
            x = rounded.get(rounding, x)
            if to[0] != 'f':
                if rounding not in rounded:
                    raise Error('no rounding')
                return self.assign(d, to, f'ptx_to_integer<{C_TYPE[to]}>({x})')
            if rounding == 'sat':
                if (source, to) != ('f32', 'f32'):
                    raise Error('.sat of another type')
                x = f'ptx_saturate({x})'
        elif rounding not in (('rn',) if to[0] == 'f' else (None,)):
            raise Error('another rounding')
        return self.assign(d, to, f'({C_TYPE[to]}){x}')

    def convert_address(self, op, d, a):
        to, space = self.take('to'), self.take('global', 'shared')
        if self.type() != 'u64' or not space:
            raise Error('another space')
        if space == 'global':
            return self.assign(d, 'u64', self.value(a, 'u64'))
        if to:
            return self.assign(d, 'u64', f'ptx_to_shared({self.value(a, "u64")}, {self.line})')
        return self.assign(d, 'u64', f'ptx_from_shared({self.value(a, "u32")})')

    # ---- memory ----

    def space(self):
        return self.take('param', 'shared', 'global')

    def place(self, operand, space, width):
        """C++ that declares `at`, the checked address of so many bytes."""
        address = self.address(operand, space)
        if space == 'shared':
            return f'char *at = ptx_shared({address}, {width}, {self.line}); '
        return f'const uint64_t at = {address}; '

    def load(self, op, d, address):
        t, space, vector, nc = self.type(), self.space(), self.take('v2', 'v4'), self.take('nc')
        registers = split(d[1:-1]) if vector else [d]
        if len(registers) != int((vector or 'v1')[1]) or nc and space != 'global':
            raise Error('operands')
        c_type, width = C_TYPE[t], size(t) * len(registers)
        if space == 'param':
            bytes_ = self.entry.param_bytes
            return ' '.join(self.assign(r, t, f'ptx_param<{c_type}>(params, {bytes_}, {self.address(address, space)} + '
                                              f'{i * size(t)}, {self.line})') for i, r in enumerate(registers))
        c = self.place(address, space, width) + f'{c_type} x[{len(registers)}]; '
        if space == 'shared':
            c += f'memcpy(x, at, {width}); '
        else:
            c += f'ptx_load{"_nc" if nc else ""}(x, {width}, at, {self.line}); '
        return c + ' '.join(self.assign(r, t, f'x[{i}]') for i, r in enumerate(registers))

    def store(self, op, address, a):
        t, space, vector = self.type(), self.space(), self.take('v2', 'v4')
        operands = split(a[1:-1]) if vector else [a]
        if len(operands) != int((vector or 'v1')[1]) or space == 'param':
            raise Error('operands')
        width, values = size(t) * len(operands), ', '.join(self.value(x, t) for x in operands)
        c = self.place(address, space, width) + f'const {C_TYPE[t]} x[] = {{ {values} }}; '
        return c + (f'memcpy(at, x, {width});' if space == 'shared' else f'ptx_store(x, {width}, at, {self.line});')

    def atomic(self, op, *operands):        # one thread runs at a time
        t, space = self.type(), self.space()
        how = self.take('add', 'min', 'max', 'and', 'or', 'xor', 'exch', 'cas')
        self.take('relaxed')
        self.take('gpu', 'cta')
        d, address, *rest = operands if op == 'atom' else ('_',) + operands
        x = [self.value(r, t) for r in rest]
        new = {'add': 'old + {0}', 'and': 'old & {0}', 'or': 'old | {0}', 'xor': 'old ^ {0}', 'exch': '{0}',
               'cas': 'old == {0} ? {1} : old', 'min': 'old < {0} ? old : {0}', 'max': 'old > {0} ? old : {0}'}[how]
        if how == 'cas' and len(x) != 2 or how != 'cas' and len(x) != 1:
            raise Error('operands')
        width, new = size(t), new.format(*x)
        c = self.place(address, space, width) + f'{C_TYPE[t]} old; '
        if space == 'shared':
            c += f'memcpy(&old, at, {width}); const {C_TYPE[t]} now = {new}; memcpy(at, &now, {width}); '
        else:
            c += f'ptx_load(&old, {width}, at, {self.line}); const {C_TYPE[t]} now = {new}; ' \
                 f'ptx_store(&now, {width}, at, {self.line}); '
        return c + self.assign(d, t, 'old')

    def async_copy(self, op, *operands):
        if self.take('commit_group'):
            self.take('async')
            return 'cuda_on_cpu_copy_commit();'
        if self.take('wait_group'):
            self.take('async')
            return f'cuda_on_cpu_copy_wait({int(operands[0])});'
        to, source, width, valid = operands if len(operands) == 4 else (*operands, operands[2])
        if not (self.take('async') and self.take('cg', 'ca') and self.take('shared') and self.take('global')):
            raise Error('not a copy from global to shared memory')
        return f'ptx_copy_async({self.address(to, "shared")}, {self.address(source, "global")}, {int(width)}, ' \
               f'{self.value(valid, "u32")}, {self.line});'

    # ---- threads ----

    def barrier(self, op, *operands):
        if self.take('warp'):
            self.expect('sync')
            return f'cuda_on_cpu_warp(CUDA_ON_CPU_SYNCWARP, {self.value(*operands, "u32")}, 0, 0, 32, {self.line});'
        self.expect('sync')
        if operands != ('0',):
            raise Error('a barrier of some threads')
        return f'cuda_on_cpu_syncthreads({self.line});'

    def fence(self, op):
        if not self.take('gl', 'cta'):
            raise Error('another fence')
        return ''           # one thread runs at a time, and memory has no order of its own

    def shuffle(self, op, d, a, b, c, mask):
        how = self.take('bfly', 'down', 'up', 'idx')
        self.expect('sync')
        self.expect('b32')
        kind = 'CUDA_ON_CPU_SHFL' + ('' if how == 'idx' else '_' + SHUFFLES[how])
        d, _, valid = d.partition('|')
        operands = ', '.join(self.value(x, 'b32') for x in (a, b, c, mask))
        return f'bool valid; const uint32_t x = ptx_shfl({kind}, {operands}, &valid, {self.line}); ' + \
            self.assign(d, 'b32', 'x') + (self.assign(valid, 'pred', 'valid') if valid else '')

    def expect(self, *modifiers):
        for m in modifiers:
            if not self.take(m):
                raise Error(f'not .{m}')

    def matrices(self, op, d, address):
        self.expect('sync', 'aligned', 'm8n8', 'x4', 'shared', 'b16')
        transposed = 'true' if self.take('trans') else 'false'
        registers = split(d[1:-1])
        return f'uint32_t x[4]; cuda_on_cpu_ldmatrix(x, ptx_shared({self.address(address, "shared")}, 16, ' \
            f'{self.line}), {transposed}, {self.line}); ' + \
            ' '.join(self.assign(registers[i], 'b32', f'x[{i}]') for i in range(4))

    def matrix_product(self, op, d, a, b, c):
        if self.modifiers != 'sync aligned m16n8k16 row col f32 bf16 bf16 f32'.split():
            raise Error('another product')
        self.modifiers = []
        d, a, b, c = (split(x[1:-1]) for x in (d, a, b, c))
        sums, rows = (', '.join(self.value(x, t) for x in operand) for operand, t in ((c, 'f32'), (a, 'b32')))
        columns = ', '.join(self.value(x, 'b32') for x in b)
        return f'float x[4] = {{ {sums} }}; const uint32_t a[4] = {{ {rows} }}; ' \
            f'cuda_on_cpu_mma(x, a, {columns}, {self.line}); ' + \
            ' '.join(self.assign(d[i], 'f32', f'x[{i}]') for i in range(4))

    # ---- control ----

    def branch(self, op, to):
        self.take('uni')
        return f'goto {self.label(to)};'

    def leave(self, op):
        return 'return;'

    def trap(self, op):
        return f'ptx_die({self.line}, "trap");'


F = Function
INSTRUCTIONS = {
    'add': F.arithmetic, 'sub': F.arithmetic, 'mul': F.arithmetic, 'mad': F.mad, 'fma': F.fma, 'div': F.divide,
    'rem': F.divide, 'min': F.min_max, 'max': F.min_max, 'neg': F.negate, 'abs': F.absolute, 'sqrt': F.root,
    'rcp': F.root, 'rsqrt': F.root, 'ex2': F.power, 'lg2': F.power, 'and': F.logic, 'or': F.logic, 'xor': F.logic,
    'not': F.invert, 'shl': F.shift, 'shr': F.shift, 'shf': F.funnel, 'bfi': F.bit_field, 'bfe': F.bit_field,
    'lop3': F.bit_field, 'prmt': F.bit_field, 'selp': F.select, 'setp': F.compare, 'mov': F.move, 'cvt': F.convert,
    'cvta': F.convert_address, 'ld': F.load, 'st': F.store, 'atom': F.atomic, 'red': F.atomic, 'cp': F.async_copy,
    'bar': F.barrier, 'barrier': F.barrier, 'membar': F.fence, 'shfl': F.shuffle, 'ldmatrix': F.matrices,
    'mma': F.matrix_product, 'bra': F.branch, 'ret': F.leave, 'exit': F.leave, 'trap': F.trap}


# ----------------------------------------------------------------------------------------------------------------------
# C++

class Translation:
    """A function, and the kernels that it is the translation of."""

    def __init__(self, function):
        self.file = function.entry.source.rsplit('/', 1)[-1]
        self.body, self.variables = function.text(), function.variables()
        independent = re.sub(r'AT\(\d+\)', '', f'{self.body} {self.variables}')
        self.hash = hashlib.sha256(independent.encode()).hexdigest()[:16]
        self.kernels = []

    def code(self, fault):
        name = f'ptx_{self.hash}'
        variables = ''.join(f'{{ {bytes_}, {alignment} }}, ' for bytes_, alignment in self.variables)
        kernels = ',\n'.join(f'    {{ "{source}", "{entry}", "{self.hash}", {bytes_}, {name}, {name}_shared, {fault} }}'
                             for source, entry, bytes_ in self.kernels)
        return f'#undef PTX_FILE\n#define PTX_FILE "{self.file}"\n' \
            f'static void {name}(const char *params) {{\n{self.body}\n}}\n' \
            f'static const ptx_variable {name}_shared[] = {{ {variables}{{ 0, 0 }} }};\n' \
            f'static const ptx_kernel {name}_kernels[] = {{\n{kernels}\n}};\n' \
            f'static const ptx_kernels {name}_found({name}_kernels, {len(self.kernels)});\n\n'


def write(path, translations, fault):
    with open(path, 'w') as f:
        f.write('#include "test/ptx/machine.h"\n#define AT(n) PTX_FILE, n\n\n')
        f.writelines(t.code(fault) for t in translations)


def plant(entries, arguments):
    """The entry with the fault."""
    chosen = [e for e in entries if re.search(arguments.entry, e.name)]
    if len(chosen) != 1:
        raise Error(f'{len(chosen)} entries match {arguments.entry}: {[e.name for e in chosen][:5]}')
    pattern, text = arguments.replace
    matches = list(re.finditer(pattern, chosen[0].body))
    if len(matches) < max(arguments.nth, 1):
        raise Error(f'{len(matches)} matches of {pattern} in {chosen[0].name}')
    for m in reversed(matches if arguments.nth == 0 else matches[arguments.nth - 1:arguments.nth]):
        chosen[0].body = chosen[0].body[:m.start()] + m.expand(text) + chosen[0].body[m.end():]
    return chosen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--output', required=True)
    parser.add_argument('--fault', type=int, default=0)
    parser.add_argument('--entry')
    parser.add_argument('--replace', nargs=2)
    parser.add_argument('--nth', type=int, default=1)
    parser.add_argument('files', nargs='+')
    arguments = parser.parse_args()
    entries = [e for file in arguments.files for e in read(*file.split(':'))]
    if arguments.fault:
        entries = plant(entries, arguments)
    translations, lines = {}, []
    for entry in entries:
        new = Translation(Function(entry))
        t = translations.setdefault(new.hash, new)
        t.kernels.append((new.file, entry.name, entry.param_bytes))
        lines.append(f'{t.hash} {entry.source} {entry.name}\n')
    if arguments.fault:
        return write(f'{arguments.output}/fault_{arguments.fault}.cpp', translations.values(), arguments.fault)
    chunks = [[]]
    for t in translations.values():
        if sum(c.body.count('\n') for c in chunks[-1]) > CHUNK_LINES:
            chunks.append([])
        chunks[-1].append(t)
    for i, chunk in enumerate(chunks):
        write(f'{arguments.output}/ptx_{i}.cpp', chunk, 0)
    with open(f'{arguments.output}/entries.txt', 'w') as f:
        f.writelines(lines)
    return None


if __name__ == '__main__':
    try:
        main()
    except Error as error:
        sys.exit(f'{sys.argv[0]}: {error}')
