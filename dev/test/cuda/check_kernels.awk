# check_kernels.awk: checks what the compiler made of each kernel (dev/test/cuda/check_cuda.sh runs it).
#
#     awk -v arch=sm_90 -v build=bf16 -v compute_bound=REGEX -v in_place=REGEX -f check_kernels.awk kernels.ptx \
#         kernels.log
#
# Reads the PTX first, then the output of `ptxas -v`. Prints one line per kernel for the table, and one that begins with
# FAIL for each rule that it breaks:
#   - it has __launch_bounds__, and there are enough registers for that many threads (registers are allocated per warp,
#     in units of 8 per thread);
#   - no spills, and no stack: a local array whose index is known only at run time lies in memory (sm_100: 16 bytes at
#     most; nvcc 13.0 spills two registers of flash_forward_kernel<64> there);
#   - static shared memory of at most 48 KB (ptxas refuses more than that itself);
#   - unless its name matches compute_bound, it is bound by memory and moves 16 bytes at a time: it has at least one
#     such load from global memory, and in no loop, inner loops included, most accesses are narrower. (The narrow ones
#     fetch a row's index or mean. Single 64-bit words, which are pointers and integers, do not count.)
#   - unless its name matches in_place, no loop reads, changes and writes global memory: a sum belongs in a register.
#     (Of the others, which update an array in place, the emulated GPU counts the stores: memory_requests.cuh.)
# A place is what has the same address register. A loop of PTX is what lies between a label and a branch back to it; the
# compiler keeps the code of a loop together.
# Occupancy is an estimate: it does not include dynamic shared memory, which is known only at the launch.

FNR == 1 { file++ }

# ---- PTX: launch bounds, loops, accesses ----

file == 1 && /\.entry/ {
    sub(/.*\.entry[ \t]+/, "")
    sub(/\(.*/, "")
    name = $1
    names[++num_names] = name
    labels = loops = accesses = places = 0
    split("", label)
}
file == 1 && /^\.maxntid/ { gsub(/,/, ""); threads[name] = $2 * ($3 ? $3 : 1) * ($4 ? $4 : 1) }
file == 1 && /^\$[A-Za-z0-9_]+:/ { sub(/:.*/, ""); label[$1] = FNR }
file == 1 && /[ \t]bra/ {
    to = $NF
    sub(/;/, "", to)
    if (to in label) { begin[++loops] = label[to]; end[loops] = FNR }     # backward: the label was before it
}
file == 1 && match($0, /[ \t](ld|st)\.[a-z0-9_.:]+/) {
    what = substr($0, RSTART + 1, RLENGTH - 1)
    access(what)
    if (what ~ /\.global/ && match($0, /\[%[a-z0-9]+/)) {
        line[++places] = FNR
        operation[places] = substr(what, 1, 2)
        register[places] = substr($0, RSTART + 1, RLENGTH - 1)
    }
}
file == 1 && /^}/ { judge_accesses() }

# what: ld.global.nc.v4.f32, for example. No state space: a pointer that may point anywhere.
function access(what,    n, part, width, single, i) {
    n = split(what, part, ".")
    if (what ~ /\.(param|shared|local|const)/ || what ~ /::shared/) return
    width = part[n]
    sub(/^[a-z]+/, "", width)
    width /= 8
    single = 1
    for (i = 1; i < n; i++) if (part[i] ~ /^v[248]$/) { width *= substr(part[i], 2); single = 0 }
    if (!single || width != 8 || part[n] ~ /^f/) {
        at[++accesses] = FNR
        wide[accesses] = width >= 16
    }
    if (part[1] == "ld") loads[name, width >= 16]++
    else stores[name, width >= 16]++
}

function judge_accesses(    l, a, b, n) {
    for (l = 1; l <= loops; l++) for (a = 1; a <= places; a++) {
        if (operation[a] != "st" || line[a] < begin[l] || line[a] > end[l]) continue
        for (b = 1; b <= places; b++)
            if (operation[b] == "ld" && register[b] == register[a] && line[b] >= begin[l] && line[b] < line[a])
                updates[name] = 1
    }
    for (l = 1; l <= loops; l++) {
        n[0] = n[1] = 0
        for (a = 1; a <= accesses; a++) if (at[a] >= begin[l] && at[a] <= end[l]) n[wide[a]]++
        if (n[0] > n[1] && n[0] > narrow[name, 0]) { narrow[name, 0] = n[0]; narrow[name, 1] = n[1] }
    }
}

# ---- the output of ptxas ----

file == 2 && /Compiling entry function/ { split($0, quoted, "'"); name = quoted[2] }
file == 2 && /bytes stack frame/ { stack[name] = $1; spill[name] = $5 + $9 }
file == 2 && /: Used [0-9]+ registers/ {
    for (i = 2; i <= NF; i++) {
        if ($i ~ /^registers/) registers[name] = $(i - 1)
        if ($i ~ /^smem/) shared[name] = $(i - 2)
    }
}

# ---- the table ----

function fail(why) { print "FAIL " build " " arch " " name ": " why }
function least(a, b) { return a < b ? a : b }

END {
    for (k = 1; k <= num_names; k++) {
        name = names[k]
        if (!(name in registers)) { fail("ptxas does not report it"); continue }
        t = threads[name]
        if (!t) { fail("has no __launch_bounds__; 1024 threads are assumed"); t = 1024 }
        given = int((registers[name] + 7) / 8) * 8
        if (registers[name] > 255 || given * t > 65536)
            fail(registers[name] " registers x " t " threads are more than 65536 of a multiprocessor")
        few = arch == "sm_100" ? 16 : 0
        if (spill[name] > few) fail(spill[name] " bytes of spills")
        if (stack[name] > few) fail(stack[name] " bytes of stack")
        if (updates[name] && (in_place == "" || name !~ in_place)) fail("a loop updates global memory in place")
        if (shared[name] > 48 * 1024) fail(shared[name] " bytes of static shared memory are more than 48 KB")
        if (name !~ compute_bound) {
            if (!loads[name, 1]) fail("no 16-byte load from global memory")
            if (narrow[name, 0])
                fail("a loop has " narrow[name, 0] " narrow accesses of global memory, but " narrow[name, 1] \
                    " of 16 bytes")
        }
        blocks = least(32, least(int(2048 / t), int(65536 / (given * t))))
        multiprocessor_shared = arch == "sm_80" ? 164 : 228                 # KB; each block takes one more for itself
        blocks = least(blocks, int(multiprocessor_shared * 1024 / (shared[name] + 1024)))
        printf "%-5s %-7s %9d %8d %7d %6d %6d %11.0f%% %6d/%-6d %6d/%-6d %s\n", build, arch, registers[name], t, \
            shared[name], stack[name], spill[name], 100 * blocks * t / 2048, loads[name, 1], loads[name, 0], \
            stores[name, 1], stores[name, 0], name
    }
}
