# check_launches.awk: is each kernel launched with as many threads as its __launch_bounds__ promise the compiler? With
# more, a GPU refuses the launch; the emulated GPU does not know the bounds. (dev/test/cuda/check_cuda.sh runs it.)
#
#     awk -f check_launches.awk SOURCES...
#
# Prints a line "kernel threads" for each LAUNCH(blocks, threads, shared, stream, kernel, ...), and one that begins with
# FAIL for each that does not agree.

!/^[ \t]*(\/\/|#[ \t]*define)/ { text = text " " $0 }

# The arguments of the call whose opening parenthesis is at `from`, to arg[1 ...]; returns their number.
function arguments(from, arg,    depth, n, i, c) {
    n = 1
    arg[1] = ""
    for (i = from + 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == ")" && depth == 0) break
        if (c == "(") depth++
        if (c == ")") depth--
        if (c == "," && depth == 0) arg[++n] = ""
        else if (c != " ") arg[n] = arg[n] c
    }
    end = i
    return n
}

END {
    whole = text
    while (match(text, /__launch_bounds__\(/)) {
        arguments(RSTART + RLENGTH - 1, arg)
        text = substr(text, end + 1)
        match(text, /[A-Za-z_0-9]+\(/)
        bounds[substr(text, RSTART, RLENGTH - 1)] = arg[1]
    }
    text = whole
    while (match(text, /[^A-Za-z_]LAUNCH\(/)) {
        arguments(RSTART + RLENGTH - 1, arg)
        text = substr(text, end + 1)
        name = arg[5]
        sub(/<.*/, "", name)
        print name, arg[2]
        if (!(name in bounds)) print "FAIL " name ": launched, but its __launch_bounds__ were not found"
        else if (bounds[name] != arg[2])
            print "FAIL " name ": launched with " arg[2] " threads, but its __launch_bounds__ are " bounds[name]
    }
}
