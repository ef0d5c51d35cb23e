# check_sass.awk: checks the machine code of kernels (dev/test/cuda/check_cuda.sh runs it).
#
#     cuobjdump -sass kernels.cubin | awk -v arch=sm_90 -f check_sass.awk
#
# No kernel has local memory (LDL, STL), or atomics in global memory (RED, REDG, ATOM, ATOMG): the same bits in every
# run. (sm_100: two registers of flash_forward_kernel<64> are spilled.) Kernels on tensor cores, whose name begins with
# flash, also keep these rules:
#   - products are matrix instructions (HMMA), whose operands come from shared memory by LDSM, plain and transposed;
#   - tiles arrive by asynchronous copies of 16 bytes (LDGSTS.128; a single narrower one may bring statistics of rows);
#   - results leave in stores of 16 bytes (at most two narrower ones: statistics of the rows of a lane).
# Prints one line per kernel on tensor cores, and one that begins with FAIL for each rule that a kernel breaks.

/Function :/ { name = $3; names[++num_names] = name }
/^[ \t]*\/\*[0-9a-f]+\*\/[ \t]+[@A-Z]/ {
    op = $2 ~ /^@/ ? $3 : $2
    sub(/;$/, "", op)
    kind = op
    sub(/\..*/, "", kind)
    if (kind == "LDSM" && op ~ /MT88|\.T/) kind = "LDSM.T"
    if (kind ~ /^(LDGSTS|STG)$/ && op ~ /\.128/) kind = kind ".128"
    sub(/^REDG$/, "RED", kind)
    sub(/^ATOMG$/, "ATOM", kind)
    count[name, kind]++
    count[name, "all"]++
}

function fail(why) { print "FAIL " arch " " name ": " why }
function has(kind) { return count[name, kind] + 0 }

END {
    n = split("all HMMA LDSM LDSM.T LDGSTS.128 STG.128 BAR", columns, " ")
    for (k = 1; k <= num_names; k++) {
        name = names[k]
        local = has("LDL") + has("STL")
        if (local > (arch == "sm_100" ? 4 : 0)) fail(local " accesses of local memory")
        if (has("RED") + has("ATOM")) fail(has("RED") + has("ATOM") " atomics in global memory")
        if (name !~ /^(_Z[0-9]+)?flash/) continue
        if (!has("HMMA")) fail("no matrix instruction (HMMA)")
        if (!has("LDSM") || !has("LDSM.T")) fail("no matrices from shared memory (LDSM), plain or transposed")
        if (!has("LDGSTS.128") || has("LDGSTS") > 2) fail(has("LDGSTS") " narrow asynchronous copies, " \
            has("LDGSTS.128") " of 16 bytes")
        if (!has("STG.128") || has("STG") > 2) fail(has("STG") " narrow stores, " has("STG.128") " of 16 bytes")
        line = sprintf("%-7s", arch)
        for (i = 1; i <= n; i++) line = line sprintf(" %10d", has(columns[i]))
        print line " " name
    }
}
