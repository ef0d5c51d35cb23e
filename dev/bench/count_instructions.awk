# count_instructions.awk: the loops of each kernel in machine code: instructions, and 16-byte accesses among them. For
# the table in estimate_step.c.
#
#     cuobjdump -sass kernels.cubin | awk -f dev/bench/count_instructions.awk | c++filt -p
#
# A loop is what lies between a branch back and its target; one that contains another counts its instructions too. A
# pack of bf16 is one 16-byte access, a pack of floats two.

/Function :/ { finish(); name = $3 }
match($0, /\/\*[0-9a-f]+\*\/ +[@A-Z]/) {
    split($0, part, /\*\/|\/\*/)
    address = padded(part[2])
    at[++n] = address
    op[n] = part[3]
    sub(/^ *(@!?U?P[0-9T]+ +)?/, "", op[n])
    if (op[n] ~ /^BRA/ && match(op[n], /0x[0-9a-f]+/)) {
        to = padded(substr(op[n], RSTART + 2, RLENGTH - 2))
        if (to < address) { begin[++loops] = to; end[loops] = address }
    }
}
END { finish() }

# Hexadecimal numbers that compare as text.
function padded(hex) { return substr("00000000", 1, 8 - length(hex)) hex }

function finish(    l, i, all, loads, stores, shared) {
    for (l = 1; l <= loops; l++) {
        all = loads = stores = shared = 0
        for (i = 1; i <= n; i++) {
            if (at[i] < begin[l] || at[i] > end[l]) continue
            all++
            loads += op[i] ~ /^LDG\..*128/
            stores += op[i] ~ /^STG\..*128/
            shared += op[i] ~ /^(LDS|STS)\..*128/
        }
        printf "%5d instructions, LDG.128 %3d, STG.128 %3d, LDS and STS.128 %3d  %s\n", all, loads, stores, shared, name
    }
    n = loops = 0
}
