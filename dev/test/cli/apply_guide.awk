# Prints FILE with the edits that a section of zero/README.md describes:
#
#     awk -v section="Step 1: one unit" -f dev/test/cli/apply_guide.awk zero/README.md FILE
#
# An edit is a line of these, TEXT and END in backquotes, followed by indented lines of code unless it deletes:
#
#     After TEXT:     Before TEXT:     Instead of TEXT:     Instead of TEXT to END:
#     Delete TEXT.     Delete TEXT to END.
#
# It applies to the next line of FILE that contains TEXT, below the edit before it, and with END to all lines up to the
# next one that contains END. What is not found is an error that names the line of the guide.

function fail(message) {
    print FILENAME ": " message > "/dev/stderr"
    failed = 1
    exit 1
}

# The guide
FNR == NR && /^#/ { inside = $0 ~ "^#+ " section "$"; open = 0 }
FNR == NR && inside && /^(After|Before|Instead of|Delete) `/ {
    n++
    parts = split($0, quoted, "`")
    if (parts != 3 && !(parts == 5 && quoted[3] == " to ")) fail("line " FNR ": not an edit")
    kind[n] = $1
    text[n] = quoted[2]
    end[n] = quoted[4]
    line[n] = FNR
    blank = ""
    open = 1
    next
}
FNR == NR && open && /^    / {
    code[n] = code[n] blank substr($0, 5) "\n"
    blank = ""
    next
}
FNR == NR && open && /^$/ { if (code[n] != "") blank = blank "\n"; next }
FNR == NR { open = 0; next }

# The file
FNR == 1 { at = 1 }
until != "" {
    if (index($0, until)) {
        until = ""
        printf "%s", code[at++]
    }
    next
}
at <= n && index($0, text[at]) {
    if (kind[at] == "Before") {
        printf "%s", code[at++]
        # the next edit may be about this line
        if (!(at <= n && index($0, text[at]))) {
            print
            next
        }
    }
    if (kind[at] == "After") {
        print
        printf "%s", code[at++]
    } else if (end[at] == "") {
        printf "%s", code[at++]
    } else {
        until = end[at]
    }
    next
}
{ print }

END {
    if (!failed && !n) fail("there is no section \"" section "\" with edits")
    if (!failed && at <= n) fail("not found: " (until != "" ? until : text[at]) " (line " line[at] " of the guide)")
}
