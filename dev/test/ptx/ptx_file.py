"""ptx_file.py: reads nvcc's PTX: entries, their parameters and shared variables, and statements."""
import re


class Error(Exception):
    pass


def size(type_name):
    return 1 if type_name == 'pred' else int(type_name[1:]) // 8


def unsigned(type_name):
    return 'u' + type_name[1:] if type_name[0] in 'sb' else type_name


def round_up(n, multiple):
    return (n + multiple - 1) // multiple * multiple


def split(text, separator=','):
    """Splits at separators that are in no braces or brackets."""
    parts, depth, part = [], 0, ''
    for c in text:
        depth += (c in '{[') - (c in '}]')
        if c == separator and depth == 0:
            parts.append(part.strip())
            part = ''
        else:
            part += c
    return parts + [part.strip()] if part.strip() else parts


class Entry:
    def __init__(self, source, name, line, params, body, shared):
        self.source, self.name, self.line, self.body = source, name, line, body
        self.params, self.param_bytes = {}, 0
        for declaration in split(params):
            declaration = re.sub(r' \.ptr(?: \.\w+)? \.align \d+', '', declaration)     # of sm_100
            m = re.fullmatch(r'\.param \.(?:align (\d+) \.b8 ([\w$]+)\[(\d+)\]|(\w+) ([\w$]+))', declaration)
            if not m:
                raise Error(f'parameter "{declaration}"')
            alignment, n = (int(m[1]), int(m[3])) if m[2] else (size(m[4]), size(m[4]))
            self.param_bytes = round_up(self.param_bytes, alignment)
            self.params[m[2] or m[5]] = self.param_bytes
            self.param_bytes += n
        self.shared = dict(shared)      # name -> (alignment, bytes); None bytes: dynamic


def read(path, source):
    """The entries of a PTX file."""
    text = re.sub(r'//[^\n]*', '', open(path).read())
    text = re.sub(r'(?<=[{ ])tmp(?=[,};])', '%tmp', text)   # for sm_100: the half of a word that is not needed
    entries, shared, at = [], {}, 0
    patterns = (
        (r'\.(?:version|target|address_size)\b[^\n]*', None),
        (r'\.extern \.shared \.align (\d+) \.b8 ([\w$]+)\[\];', 'dynamic'),
        (r'\.shared \.align (\d+) \.b8 ([\w$]+)\[(\d+)\];', 'shared'),
        (r'\.(?:visible|weak) \.entry ([\w$]+)\(([^)]*)\)((?:\s*\.(?:maxntid|minnctapersm)[^\n{]*)*)\s*\{', 'entry'))
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        for pattern, kind in patterns:
            m = re.compile(pattern).match(text, at)
            if m:
                break
        else:
            raise Error(f'{path}:{text.count(chr(10), 0, at) + 1}: {text[at:at + 80].splitlines()[0]}')
        at = m.end()
        if kind == 'dynamic':
            shared[m[2]] = (int(m[1]), None)
        elif kind == 'shared':
            shared[m[2]] = (int(m[1]), int(m[3]))
        elif kind == 'entry':
            end = text.index('\n}', at)
            entries.append(Entry(source, m[1], text.count('\n', 0, at) + 1, m[2], text[at:end], shared))
            at = end + 2
    return entries


def statements(body, line):
    """(line, text) of each statement: without its semicolon; a label with its colon; a brace of an inner block."""
    at = 0
    token = re.compile(r'\s*(?:([{}])|([\w$]+:)(?!:)|([^;{}\s][^;]*);)')
    while body[at:].strip():
        m = token.match(body, at)
        if not m:
            raise Error(f'"{body[at:at + 60].strip()}"')
        begin = m.start(m.lastindex)
        line += body.count('\n', at, begin)
        yield line, m[1] or m[2] or re.sub(r'\s+', ' ', m[3])
        line += body.count('\n', begin, m.end())
        at = m.end()
