// CUDA_ON_CPU_EVIDENCE=FILE: appends to FILE which kernels the emulated GPU has executed and which functions of CUDA
// and NCCL the program has called, a line for each: "emulated PRECISION - - NAME", mangled. From such files
// dev/test/cuda/gpu_status.py makes the tables in dev/docs/gpu-status.md.
//
// The emulated build compiles runtime.cpp, streams.cpp and nccl.cpp with -finstrument-functions, so that the compiler
// calls __cyg_profile_func_enter at the begin of each function. Kernels are static, which the dynamic linker does not
// know, so names are read from the program's own table of symbols; in it, the symbols of a source file follow its name.
#ifdef CUDA_ON_CPU_EMULATED
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef PRECISION_BF16
static const char precision[] = "bf16";
#else
static const char precision[] = "fp32";
#endif

typedef std::map<uintptr_t, cuda_on_cpu_symbol> symbol_map;

static int program_begin(dl_phdr_info *info, size_t, void *begin) {
    *static_cast<uintptr_t *>(begin) = info->dlpi_addr;
    return 1;  // the first one is the program
}

static symbol_map *read_symbols() {
    symbol_map *symbols = new symbol_map();  // never freed: programs call CUDA while they end
    const int fd = open("/proc/self/exe", O_RDONLY);
    struct stat file = {};
    if (fd < 0 || fstat(fd, &file)) return symbols;
    const void *map = mmap(nullptr, static_cast<size_t>(file.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return symbols;
    uintptr_t begin = 0;
    dl_iterate_phdr(program_begin, &begin);
    const char *elf = static_cast<const char *>(map);
    const ElfW(Ehdr) *head = reinterpret_cast<const ElfW(Ehdr) *>(elf);
    const ElfW(Shdr) *section = reinterpret_cast<const ElfW(Shdr) *>(elf + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (section[i].sh_type != SHT_SYMTAB) continue;
        const ElfW(Sym) *symbol = reinterpret_cast<const ElfW(Sym) *>(elf + section[i].sh_offset);
        const char *names = elf + section[section[i].sh_link].sh_offset, *source = "";
        for (size_t k = 0; k < section[i].sh_size / sizeof *symbol; k++) {
            const char *name = names + symbol[k].st_name;
            if (ELF64_ST_TYPE(symbol[k].st_info) == STT_FILE) source = name;
            if (ELF64_ST_TYPE(symbol[k].st_info) == STT_FUNC) (*symbols)[begin + symbol[k].st_value] = { name, source };
        }
    }
    return symbols;
}

cuda_on_cpu_symbol cuda_on_cpu_find_symbol(const void *function) {
    static const symbol_map *const symbols = read_symbols();
    const auto found = symbols->find(reinterpret_cast<uintptr_t>(function));
    return found == symbols->end() ? cuda_on_cpu_symbol{ "", "" } : found->second;
}

static const char *const path = getenv("CUDA_ON_CPU_EVIDENCE");
static std::mutex lock;
static std::set<const void *> *executed;  // allocated at its first use, which may be before this file's constructors

static void write_down() {
    const std::lock_guard<std::mutex> guard(lock);
    std::string lines;
    for (const void *function : *executed) {
        const char *name = cuda_on_cpu_find_symbol(function).name;
        if (*name) lines += std::string("emulated ") + precision + " - - " + name + '\n';
    }
    // In one piece, since other processes append too.
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (fd < 0 || write(fd, lines.data(), lines.size()) < 0) perror(path);
    if (fd >= 0) close(fd);
}

void cuda_on_cpu_executed(const void *function) {
    if (!path) return;
    const std::lock_guard<std::mutex> guard(lock);
    if (!executed) {
        executed = new std::set<const void *>();
        atexit(write_down);
    }
    executed->insert(function);
}

extern "C" __attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *function, void *) {
    cuda_on_cpu_executed(function);
}
extern "C" __attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *, void *) {}

#endif
