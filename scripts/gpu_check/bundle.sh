# Sourced by scripts/gpu_check.sh: the bundle, for machines that have neither MPI nor a network.
#
#   DIR/env.sh      paths; source it with BUNDLE set to DIR
#   DIR/made-for    machine type, and the oldest C library that the bundle runs with: "x86_64 2.36"
#   DIR/bin         mpicc, which answers only what the Makefile asks, and mpirun
#   DIR/root        Debian or Ubuntu packages, unpacked: Open MPI, xxHash, cJSON, libyaml, and what they need
#   DIR/fallback    make, and libraries that most machines have; used only where they are missing
#   DIR/text.txt    the default training text
#   DIR/nccl        not made here: a libnccl.so.2 of NCCL 2.30 or later that is put there is used to test ranks that
#                   share a GPU

# Names differ from release to release. Fast networks are left out: all ranks are on one machine.
PACKAGES='^(openmpi-(bin|common)|libopenmpi(-dev|[0-9].*)|lib(xxhash|cjson)(-dev|[0-9].*)|libyaml-(dev|0-2)'
PACKAGES+='|libhwloc15.*|libevent-(core|pthreads)-.*|libpmix2.*|libprrte.*|prrte|libltdl7.*|libmunge2.*|libudev1.*'
PACKAGES+='|zlib1g|make)$'

# needed_libraries FILE...
needed_libraries() { readelf -d "$@" 2> /dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u; }

# prune DIR TRIPLE: removes plugins that need a library which is not in the bundle, and bindings of other languages
prune() {
    local lib=$1/root/usr/lib/$2 available plugin need
    rm -rf "$1"/root/usr/share/{doc,man} "$lib"/fortran "$lib"/liboshmem* "$lib"/libmpi_{java,usempi,mpifh,cxx}*
    find "$1/root" -name '*.a' -delete
    mkdir -p "$1/fallback"
    find "$1/root" '(' -name 'libz.so.*' -o -name 'libudev.so.*' -o -path '*/bin/make' ')' \
        -exec mv -t "$1/fallback" {} +
    available=" $(find "$1/root" "$1/fallback" -name '*.so*' -printf '%f ')"
    available+="libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 "
    find "$lib" -name '*mca_*.so*' | while read -r plugin; do
        for need in $(needed_libraries "$plugin"); do
            [[ $available == *" $need "* || $need == ld-linux* ]] || rm -f "$plugin"
        done
    done
}

# write_programs DIR TRIPLE: env.sh, bin/mpicc and bin/mpirun
write_programs() {
    cat > "$1/env.sh" << END
# Source with BUNDLE set to this directory.
bundle_lib=\$BUNDLE/root/usr/lib/$2
export PATH="\$BUNDLE/bin:\$PATH" OPAL_PREFIX="\$BUNDLE/root/usr" OPAL_SYSCONFDIR="\$BUNDLE/root/etc/openmpi"
export PMIX_INSTALL_PREFIX="\$bundle_lib/pmix2" PMIX_MCA_pcompress_base_silence_warning=1
export PRTE_PREFIX="\$BUNDLE/root/usr"
export LD_LIBRARY_PATH="\$bundle_lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export LIBRARY_PATH="\$bundle_lib\${LIBRARY_PATH:+:\$LIBRARY_PATH}"
export CPATH="\$BUNDLE/root/usr/include\${CPATH:+:\$CPATH}"
END
    cat > "$1/bin/mpicc" << END
#!/bin/sh
lib=\$BUNDLE/root/usr/lib/$2
case \$1 in
--showme:compile) echo "-I\$lib/openmpi/include" ;;
--showme:link) echo "-L\$lib/openmpi/lib -L\$lib -lmpi" ;;
--showme:incdirs) echo "\$lib/openmpi/include" ;;
*) echo "the bundle's mpicc knows --showme:compile, --showme:link and --showme:incdirs" >&2; exit 1 ;;
esac
END
    cat > "$1/bin/mpirun" << 'END'
#!/bin/sh
for program in orterun prterun; do
    [ -x "$BUNDLE/root/usr/bin/$program" ] && exec "$BUNDLE/root/usr/bin/$program" "$@"
done
echo "no orterun in $BUNDLE" >&2
exit 1
END
    chmod +x "$1/bin/mpicc" "$1/bin/mpirun"
}

make_bundle() {
    local dir triple names deb text=dev/data/text/default.txt
    mkdir -p "$1" $work && dir=$(cd "$1" && pwd) || return 1
    rm -rf "${dir:?}"/{debs,root,bin,fallback}
    mkdir -p "$dir/debs" "$dir/root" "$dir/bin"
    triple=$(gcc -print-multiarch)
    names=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances openmpi-bin libopenmpi-dev lib{xxhash,cjson,yaml}-dev make | grep -E "$PACKAGES" | sort -u)
    # shellcheck disable=SC2086
    (cd "$dir/debs" && apt-get download $names > ../apt.log 2>&1) || { cat "$dir/apt.log"; return 1; }
    for deb in "$dir"/debs/*.deb; do
        dpkg -x "$deb" "$dir/root" || return 1
    done
    rm -rf "$dir/debs" "$dir/apt.log"
    prune "$dir" "$triple"
    write_programs "$dir" "$triple"
    echo "$(uname -m) $(find "$dir/root" -type f -exec readelf -V {} + 2> /dev/null |
        sed -n 's/.*GLIBC_\(2[0-9.]*\).*/\1/p' | sort -uV | tail -n 1)" > "$dir/made-for"
    [ -r $text ] || sh dev/data/prepare_text.sh $text > /dev/null
    cp $text "$dir/text.txt" || return 1
    echo "$dir: $(du -sm "$dir" | cut -f1) MB, for $(sed 's/ / with glibc /' "$dir/made-for") or newer." \
        "Copy it to build/bundle on the machine with the GPU, or set BUNDLE."
}

# older VERSION VERSION
older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# use_bundle: sets the paths of the bundle, or prints why it cannot be used here
use_bundle() {
    local machine glibc here soname
    read -r machine glibc < "$bundle/made-for"
    here=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
    if [ "$machine" != "$(uname -m)" ] || older "$here" "$glibc"; then
        echo "$bundle needs $machine with glibc $glibc or newer, this is $(uname -m) with $here:" \
            "make a bundle on an older system"
        return 1
    fi
    BUNDLE=$(cd "$bundle" && pwd)
    export BUNDLE
    . "$BUNDLE/env.sh"
    command -v make > /dev/null || cp "$BUNDLE/fallback/make" "$BUNDLE/bin"
    for soname in "$BUNDLE"/fallback/*.so.?; do
        ldconfig -p 2> /dev/null | grep -q "[[:space:]]${soname##*/} " || cp -P "${soname%.so.*}".so.* "$bundle_lib"
    done
}

# mpi_works: compiles a program of two ranks and runs it; prints what went wrong
mpi_works() {
    cat > $work/hello.c << 'END'
#include <mpi.h>
int main(int argc, char **argv) {
    int ranks = 0, one = 1;
    MPI_Init(&argc, &argv);
    MPI_Allreduce(&one, &ranks, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return ranks != 2;
}
END
    # shellcheck disable=SC2046
    (
        NP=2
        . scripts/env.sh
        gcc $(mpicc --showme:compile) $work/hello.c -o $work/hello $(mpicc --showme:link) &&
            timeout 30 mpirun -np 2 $work/hello
    ) > $work/hello.log 2>&1 < /dev/null && return
    echo "a program of two ranks does not run: $(grep . $work/hello.log | tail -n 3 | tr '\n' ' ')"
    return 1
}
