# Makefile of zero.c: one source for a GPU, a CPU and an emulated GPU.
#
#   make                    builds ./train_gpt2_zero and a text to train on
#   make run                trains: 8 ranks, ZeRO stage 2, real text (make run NP=4 ARGS="-x 100")
#   make test               runs every test in both precisions
#   make help               lists everything else
#
# The same .cu files are compiled by nvcc (DEVICE=cuda), or by g++ with dev/device/cpu first on the include path, where
# cuda_runtime.h is a CUDA runtime for the CPU. DEVICE=cpu is fast; DEVICE=emulated runs warps and blocks as a GPU does,
# slowly, under AddressSanitizer and UBSan (emulated-tsan: under ThreadSanitizer). PRECISION is FP32 or BF16. What is
# not given is chosen for this machine, and the first line of the build says what was chosen and why. Each
# configuration has its own directory, build/<device>-<precision>, so switching between them rebuilds nothing;
# ./train_gpt2_zero links to the one that was built last.
#
# libzero.a is the module, zero/, as another program would link it; libdev.a is everything around it. Each program is
# one source file linked with both. A library adds only what a program calls, so a test of the layout needs no MPI at
# run time. All objects have an order-only dependency on `setup`, which installs what is missing on a fresh machine and
# takes a fraction of a second elsewhere (SETUP=true skips it).

NP        ?= 8
PRECISION ?=
override PRECISION := $(patsubst fp32,FP32,$(patsubst bf16,BF16,$(PRECISION)))
MARCH     ?= native
MPIRUN    ?= mpirun
SETUP     ?= scripts/setup.sh
RUN_DIR   ?= build/run
PREFIX    ?= /usr/local
SECONDS   ?= 60
JOBS      ?= $(shell nproc 2> /dev/null || echo 2)
CC         = gcc
CXX        = g++
MAKEFLAGS += --no-builtin-rules
Q          = $(if $(V),,@)
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
    MAKEFLAGS += -j$(JOBS)
endif
.DEFAULT_GOAL := train_gpt2_zero
.DELETE_ON_ERROR:
.SUFFIXES:

# ----------------------------------------------------------------------------------------------------------------------
# Device and precision

NVCC      := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc) \
                 $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME := $(or $(CUDA_HOME),$(patsubst %/bin/nvcc,%,$(NVCC)))

ifeq ($(DEVICE),)
    GPU := $(if $(NVCC),$(shell nvidia-smi -L > /dev/null 2>&1 && echo yes))
    override DEVICE := $(if $(GPU),cuda,cpu)
    WHY := $(if $(GPU),found nvcc and a GPU,$(if $(NVCC),nvidia-smi finds no GPU,no nvcc))
else
    WHY := asked for
endif
ifeq ($(PRECISION),)
    override PRECISION := $(if $(filter cuda,$(DEVICE)),BF16,FP32)
    WHY_PRECISION := the default there
else
    WHY_PRECISION := asked for
endif
ifeq ($(filter cuda cpu emulated emulated-tsan,$(DEVICE)),)
    $(error DEVICE=$(DEVICE): use cuda, cpu, emulated or emulated-tsan)
endif
ifeq ($(filter FP32 BF16,$(PRECISION)),)
    $(error PRECISION=$(PRECISION): use FP32 or BF16)
endif
ifeq ($(DEVICE)$(NVCC),cuda)
    $(error DEVICE=cuda, but there is no nvcc in PATH, $$CUDA_HOME/bin or /usr/local/cuda/bin: set CUDA_HOME, or $\
        use DEVICE=cpu)
endif
ifeq ($(filter address undefined thread,$(or $(SANITIZE),address)),)
    $(error SANITIZE=$(SANITIZE): use address, undefined or thread)
endif
ifneq ($(and $(SANITIZE),$(filter-out cpu,$(DEVICE))),)
    $(error SANITIZE=$(SANITIZE) is for DEVICE=cpu; DEVICE=emulated and emulated-tsan have sanitizers already)
endif

# The objects of libraries that others link, in a directory of their own. The module needs no PRECISION, and no cuDNN.
PIC := $(if $(filter install,$(MAKECMDGOALS)),-fPIC -fno-semantic-interposition)
ifneq ($(PIC),)
    override USE_CUDNN := 0
endif

# With DEVICE=cuda: the libraries found, the compilers' flags, and CUDNN, the library, if cuDNN does the attention.
override CUDNN :=
WHY_NO_CUDNN := this is DEVICE=$(DEVICE)
ifeq ($(DEVICE),cuda)
    include dev/device/cuda/cuda.mk
endif
# llm.c's scripts pass these two.
ifneq ($(and $(filter-out 0,$(USE_CUDNN)),$(if $(CUDNN),,missing)),)
    ifeq ($(DEVICE),cuda)
        $(error USE_CUDNN=1 needs PRECISION=BF16 and cuDNN: $(WHY_NO_CUDNN))
    endif
    $(info USE_CUDNN=1 does not apply: $(WHY_NO_CUDNN))
endif
ifneq ($(filter-out 0,$(NO_USE_MPI)),)
    $(info NO_USE_MPI=1 does not apply: MPI is linked, but -pi tcp and -pi fs never call it)
endif

override DEBUG := $(filter-out 0,$(DEBUG))
BUILD := build/$(DEVICE)-$(if $(PIC),installed,$(if $(filter BF16,$(PRECISION)),bf16,fp32)$(if $(CUDNN),-cudnn))$(if $\
    $(DEBUG),-debug)$(SANITIZE:%=-%)

NOT_BUILT := help setup data clean test test-long fuzz cuda ckpt format check-format install-into uninstall-from \
             uninstall
ifneq ($(filter-out $(NOT_BUILT), $\
      $(or $(MAKECMDGOALS),$(.DEFAULT_GOAL))),)
    $(info $(BUILD): device $(DEVICE) ($(WHY)), precision $(PRECISION) ($(WHY_PRECISION))$(GPU_LIBRARIES))
endif

# ----------------------------------------------------------------------------------------------------------------------
# Compilers and flags. `mpicc` is asked in the recipe, not here: setup may have to install it first.

MPI_CFLAGS = $$(mpicc --showme:compile)
MPI_LIBS   = $$(mpicc --showme:link)
# Optional: without it zero/offload/ has threads only.
URING_LIBS = $$(echo '\#include <liburing.h>' | $(COMPILE_C) $(EXTRA) -E -x c - > /dev/null 2>&1 && echo -luring)
DEFINES    = -I. -Idev -D_GNU_SOURCE $(if $(filter BF16,$(PRECISION)),-DPRECISION_BF16) \
             $(if $(filter 0,$(NCCL)),-DZERO_WITHOUT_NCCL) $(if $(CUDNN),-DUSE_CUDNN)
WARNINGS   = -Wall -Wextra -Wno-missing-field-initializers $(if $(filter-out 0,$(WERROR)),-Werror)
DEBUGGING  = -g -fno-omit-frame-pointer
# Sanitizers' own checks mislead gcc's analysis of where a text may be cut off, or a pointer null.
OPTIMIZE   = $(if $(DEBUG),-O0 $(DEBUGGING),-O3) $(SANITIZE:%=$(SANITIZED) -fsanitize=% -fno-sanitize-recover=all)
SANITIZED  = $(DEBUGGING) -Wno-format-truncation
# -Wno-psabi: on a CPU without AVX, vectors are passed in another way than with it. All objects are built for one CPU.
HOST_FAST  = $(OPTIMIZE) $(PIC) $(MARCH:%=-march=%) -fno-math-errno -fno-trapping-math -fopenmp -Wno-psabi
EMULATED   = -Og -g1 -fno-omit-frame-pointer -fopenmp -Wno-psabi -DCUDA_ON_CPU_EMULATED
ASAN       = -fsanitize=address,undefined -fno-sanitize-recover=all -fsanitize-sections=cuda_on_cpu_shared
TSAN       = -fsanitize=thread -DCUDA_ON_CPU_TSAN

ifneq ($(DEVICE),cuda)
    FLAGS_cpu           = $(HOST_FAST)
    FLAGS_emulated      = $(EMULATED) $(ASAN)
    FLAGS_emulated-tsan = $(EMULATED) $(TSAN)
    FLAGS      = $(FLAGS_$(DEVICE))
    INCLUDE    = -Idev/device/cpu $(DEFINES)
    COMPILE_C  = $(CC) -std=c11 $(INCLUDE) $(WARNINGS) $(FLAGS) $(MPI_CFLAGS) $(CPPFLAGS) $(CFLAGS)
    COMPILE_CU = $(CXX) -std=c++17 -x c++ $(INCLUDE) $(WARNINGS) $(FLAGS) $(MPI_CFLAGS) $(CPPFLAGS) $(CXXFLAGS)
    COMPILE_CXX = $(COMPILE_CU)
    override NO_FMA_CU = -ffp-contract=off
    DEVICE_DIR = dev/device/cpu
    LIBS       = -rdynamic -Wl,-u,ncclGetVersion        # NCCL's functions are looked up in the program itself
endif
LINK  = $(CXX) $(filter -f%,$(FLAGS)) -fopenmp $(LDFLAGS)
LIBS += -Wl,--as-needed -lxxhash -lcjson -lyaml $(URING_LIBS) $(MPI_LIBS) -ldl -lm

# The module and the baseline that it is compared with promise bits: a * b + c is two roundings, in this order. EXTRA,
# CFLAGS, CXXFLAGS and NVCCFLAGS are the user's; LAST comes after them and cannot be changed from outside.
override LAST :=
$(BUILD)/zero/%.o $(BUILD)/dev/test/harness/baseline.o: override LAST = -ffp-contract=off
$(foreach o,o cubin ptx,$(patsubst %.cu,$(BUILD)/%.$o,$(wildcard zero/*.cu))): override LAST = $(NO_FMA_CU)
# ThreadSanitizer cannot instrument the switch from one fiber to another.
$(foreach o,emulated memory_requests,build/emulated-tsan-fp32/dev/device/cpu/$o.o \
    build/emulated-tsan-bf16/dev/device/cpu/$o.o): override LAST = -fno-sanitize=thread
# Which of CUDA's and NCCL's functions are called is written down: dev/device/cpu/evidence.cpp.
ifeq ($(DEVICE),emulated)
$(foreach f,runtime streams nccl,$(BUILD)/dev/device/cpu/$f.o): override LAST = -finstrument-functions \
    -finstrument-functions-exclude-file-list=/usr/include,/usr/lib
endif
# Whole words: -fno-fast-math is harmless. nvcc passes on what comes in quotes, after a comma or -Xcompiler=, and has
# names with -- too.
UNSAFE := -Ofast -ffast-math -funsafe-math-optimizations -fassociative-math -freciprocal-math -ffinite-math-only \
          -use_fast_math -fmad=true -ftz=true -prec-div=false -prec-sqrt=false
COMMA  := ,
SPLIT   = $(subst =-, -,$(subst $(COMMA), ,$(subst ',,$(subst ",,$(COMPILE_C) $(COMPILE_CU) $(COMPILE_CXX) $(EXTRA)))))
$(foreach f,$(filter $(UNSAFE),$(patsubst --%,-%,$(SPLIT))), \
    $(error $f in the compiler's flags changes how numbers are rounded, and zero.c promises the same bits))

# ----------------------------------------------------------------------------------------------------------------------
# Sources: a file that is added to a directory is built, a program is what its name or directory says

strip_suffix = $(basename $(wildcard $(1)))
TESTS    := $(call strip_suffix,dev/test/*/test_*.c dev/test/*/test_*.cu \
                $(if $(filter emulated%,$(DEVICE)),dev/test/emulator/planted_faults.cu))
# What reads the trace of the CPU's runtime, and what tests its NCCL; what is for warps of 32 lanes.
TESTS    := $(filter-out $(if $(filter cuda,$(DEVICE)),%/test_overlap %/test_nccl_stand_in) \
                $(if $(CUDNN),,%/test_cudnn_plan) $(if $(filter cpu,$(DEVICE)),%/test_mma),$(TESTS))
BENCHES  := $(call strip_suffix,dev/bench/*.c dev/bench/*.cu)
FUZZ     := dev/test/ranks/fuzz dev/test/ranks/fuzz_engine
PYTORCH  := dev/test/ranks/optimizer_steps dev/test/unit/gpt2_logits
EXAMPLES := $(call strip_suffix,dev/examples/*.c)
TOOLS    := $(call strip_suffix,dev/data/tokenize_*.c)
PROGRAMS := train_gpt2_zero test_gpt2_zero $(TESTS) $(FUZZ) $(PYTORCH) $(BENCHES) $(EXAMPLES) $(TOOLS)
ZERO     := $(call strip_suffix,zero/*.c zero/*.cu zero/optimizers/*.c zero/optimizers/*.cpp zero/offload/*.c \
                zero/comm/*.c zero/comm/*/*.c)
DEV      := $(filter-out $(PROGRAMS),$(call strip_suffix,dev/gpt2/*.c dev/trainer/*.c dev/data/*.c \
                dev/test/harness/*.c $(DEVICE_DIR)/*.cu $(DEVICE_DIR)/*.cpp $(if $(CUDNN),dev/device/cuda/*.c)))
BINARIES  = $(addprefix $(BUILD)/,$(notdir $(1)))

# Objects are rebuilt when the commands change too, or the compiler, or what MARCH=native stands for on this CPU: all
# macros that the compiler predefines are part of this file.
COMMANDS = $(COMPILE_C) $(EXTRA) / $(COMPILE_CU) $(EXTRA) / $(COMPILE_CXX) $(EXTRA)
$(BUILD)/commands: FORCE | setup
	@mkdir -p $(@D)
	@{ printf '%s\n' '$(subst ','\'',$(COMMANDS))'; \
	    $(COMPILE_C) $(filter -m%,$(CXXFLAGS)) $(EXTRA) -dM -E -x c /dev/null; } > $@.$$$$; \
	    cmp -s $@.$$$$ $@ && rm $@.$$$$ || mv $@.$$$$ $@

define COMPILE
@mkdir -p $(@D)
@echo "  compile $<"
$(Q)$(1) -MMD -MP $(EXTRA) -c $< -o $@ $(LAST)
endef
$(BUILD)/%.o: %.c $(BUILD)/commands | setup
	$(call COMPILE,$(COMPILE_C))
$(BUILD)/%.o: %.cu $(BUILD)/commands | setup
	$(call COMPILE,$(COMPILE_CU))
$(BUILD)/%.o: %.cpp $(BUILD)/commands | setup
	$(call COMPILE,$(COMPILE_CXX))

# For dev/test/cuda/check_cuda.sh: machine code of one architecture (GENCODE=-arch=sm_90). Beside it: the PTX that it
# was made from, and, in .log, the registers and memory that each kernel takes.
$(BUILD)/%.cubin: %.cu $(BUILD)/commands | setup
	@mkdir -p $(@D)
	@echo "  compile $< $(GENCODE)"
	$(Q)$(COMPILE_CU) $(EXTRA) -cubin -keep -keep-dir $(@D) -Xptxas -v $< -o $@ $(LAST) > $(basename $@).log 2>&1 || \
	    { cat $(basename $@).log; exit 1; }

# The PTX alone, for dev/test/ptx/check_ptx.sh.
$(BUILD)/%.ptx: %.cu $(BUILD)/commands | setup
	@mkdir -p $(@D)
	@echo "  compile $< $(GENCODE) -ptx"
	$(Q)$(COMPILE_CU) $(EXTRA) -ptx -MMD -MP $< -o $@ $(LAST)

# Checks before main that this CPU has the instructions that the other objects were compiled for, so without -march.
$(BUILD)/check_cpu.o: dev/device/check_cpu.c $(BUILD)/commands | setup
	@sed -n 's/^#define __\([A-Z0-9_]*\)__ 1$$/#define BUILT_WITH_\1 1/p' $(BUILD)/commands > $(@:.o=.h)
	$(Q)$(CC) -std=c11 -O1 $(PIC) $(WARNINGS) -include $(@:.o=.h) -c $< -o $@

$(BUILD)/libzero.a: $(ZERO:%=$(BUILD)/%.o)
$(BUILD)/libdev.a: $(DEV:%=$(BUILD)/%.o)
$(BUILD)/lib%.a:
	$(Q)rm -f $@ && $(AR) qcs $@ $^

define PROGRAM
$(BUILD)/$(notdir $(1)): $(BUILD)/$(1).o $(BUILD)/check_cpu.o $(BUILD)/libzero.a $(BUILD)/libdev.a
	@echo "  link    $$@"
	$$(Q)$$(LINK) $$(COUNTED:%=-Wl,--wrap=%) $$< $(BUILD)/check_cpu.o -o $$@ \
	    -Wl,--start-group $(BUILD)/libzero.a $(BUILD)/libdev.a -Wl,--end-group $$(LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call PROGRAM,$(p))))

$(BUILD)/bench_matmul: LIBS += -lopenblas

# `make install`: the module, and the CPU's CUDA runtime, as libraries (scripts/install.sh). -z defs: a program that
# links one of them needs no other.
RUNTIME     := $(filter-out %/matmul %/process,$(call strip_suffix,dev/device/cpu/*.cpp))
ON_CPU      := $(if $(filter cpu,$(DEVICE)),$(BUILD)/libcuda-on-cpu)
LIBRARIES   := $(foreach l,$(BUILD)/libzero-$(DEVICE) $(ON_CPU),$l.so $l.a)
LINK_SHARED  = $(LINK) $(PIC) -shared -Wl,-z,defs,-soname,$(@F),-rpath,'$$ORIGIN',--as-needed
define SHARED
@echo "  link    $@"
@echo '{ global: $(EXPORTS) local: *; };' > $@.map
$(Q)$(LINK_SHARED) -Wl,--version-script,$@.map $^ -o $@ $(LIBS)
endef
$(BUILD)/libzero-$(DEVICE).so: EXPORTS = zero_*;
$(BUILD)/libzero-$(DEVICE).so: $(ZERO:%=$(BUILD)/%.o) $(BUILD)/check_cpu.o $(ON_CPU:%=%.so)
	$(SHARED)
# C++ names too: kernels are launched through them.
$(BUILD)/libcuda-on-cpu.so: EXPORTS = cuda*; nccl*; nvtx*; blockIdx; gridDim; extern "C++" { cuda_on_cpu_*; };
$(BUILD)/libcuda-on-cpu.so: LIBS = -ldl -lrt -lm
$(BUILD)/libcuda-on-cpu.so: $(RUNTIME:%=$(BUILD)/%.o)
	$(SHARED)
$(BUILD)/libzero-$(DEVICE).a: $(ZERO:%=$(BUILD)/%.o)
$(BUILD)/libcuda-on-cpu.a: $(RUNTIME:%=$(BUILD)/%.o)

ifneq ($(PTX_DIR),)
    include dev/test/ptx/ptx.mk
endif

# What needs neither MPI nor a device, and is the same program for every DEVICE and PRECISION: the tool for
# checkpoints (`make ckpt` installs nothing), and the fuzzer of all parsers, with clang's libFuzzer or, by gcc, with its
# own mutations.
PARSERS     := dev/trainer/checkpoint_format dev/trainer/checkpoint_llmc zero/optimizers/optimizers \
               dev/gpt2/config dev/gpt2/tensors dev/gpt2/model_file dev/gpt2/huggingface \
               $(filter-out $(TOOLS),$(call strip_suffix,dev/data/*.c))
PLAIN        = -std=c11 -Idev/device/cpu -I. -Idev -D_GNU_SOURCE $(WARNINGS) -MMD -MP $(CPPFLAGS) $(CFLAGS) $(EXTRA)
FUZZ_FILES  := $(call strip_suffix,dev/test/fuzz/*.c dev/trainer/config_*.c)
FUZZ_FLAGS   = -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZ_gcc     = -Wno-format-truncation
FUZZ_clang   = -fdouble-square-bracket-attributes -DLIBFUZZER -fsanitize=fuzzer-no-link
LIBFUZZER   := libclang_rt.fuzzer_no_main-$(shell uname -m).a
FUZZ_WITH    = $(if $(wildcard $(shell clang -print-runtime-dir 2> /dev/null)/$(LIBFUZZER)),clang,gcc)

define PLAIN_PROGRAM
$(1)/%.o: %.c Makefile | $(if $(filter ckpt,$(MAKECMDGOALS)),,setup)
	@mkdir -p $$(@D)
	@echo "  compile $$<, $(1)"
	$$(Q)$(2) $$(PLAIN) $(3) -c $$< -o $$@
$(1)/$(notdir $(4)): $(addprefix $(1)/,$(addsuffix .o,$(5) $(PARSERS)))
	@echo "  link    $$@"
	$$(Q)$(2) $(3) $$^ -o $$@ $$(LDFLAGS) -lxxhash -lcjson -lm $(6)
-include $(patsubst %,$(1)/%.d,$(5) $(PARSERS))
endef
CKPT_DIR    := build/ckpt$(DEBUG:%=-debug)$(SANITIZE:%=-%)
$(eval $(call PLAIN_PROGRAM,$(CKPT_DIR),$$(CC),$$(OPTIMIZE) -fopenmp,ckpt,$(call strip_suffix,dev/ckpt/*.c)))
$(eval $(call PLAIN_PROGRAM,build/fuzz-gcc,gcc,$$(FUZZ_FLAGS) $$(FUZZ_gcc),fuzz_files,$(FUZZ_FILES),-lyaml))
$(eval $(call PLAIN_PROGRAM,build/fuzz-clang,clang,$$(FUZZ_FLAGS) $$(FUZZ_clang),fuzz_files,$(FUZZ_FILES),\
    $$$$(clang -print-runtime-dir)/$(LIBFUZZER) -lyaml -lstdc++))

# The trainer with faults that dev/test/cli/test_failures.sh and test_file_faults.sh plant at the calls of these
# functions.
FAULTY = MPI_Init MPI_Finalize zero_comm_phase zero_step loader_content_hash zero_mesh_comms_create \
         launch_connect zero_create zero_destroy \
         zero_host_memory_available prepare_checkpoints \
         open close pread pwrite fsync rename unlink link posix_fallocate
$(BUILD)/faulty_trainer: $(BUILD)/train_gpt2_zero.o $(BUILD)/dev/test/cli/faults.o $(BUILD)/check_cpu.o \
                         $(BUILD)/dev/test/cli/file_faults.o $(BUILD)/libzero.a $(BUILD)/libdev.a
	@echo "  link    $@"
	$(Q)$(LINK) $(patsubst %,-Wl$(COMMA)--wrap=%,$(FAULTY) $(COUNTED)) $(filter %.o,$^) -o $@ \
	    -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS)

# cuDNN makes plans only with a driver, though without a GPU: test_cudnn_plan gets a stand-in. Functions that it lacks
# fail as in the toolkit's own empty libcuda.so.
PRETEND = $(BUILD)/pretend/libcuda.so.1
STUB    = s/.* [TW] \(cu[A-Z].*\)/__attribute__((weak)) int \1(void) { return 34; }/p
$(PRETEND): dev/test/cuda/pretend_driver.c $(BUILD)/commands
	@mkdir -p $(@D)
	$(Q)nm -D --defined-only $(CUDA_HOME)/lib64/stubs/libcuda.so | sed -n '$(STUB)' > $(@D)/rest.c
	$(Q)$(CC) -shared -fPIC $(WARNINGS) -Wl,-soname,libcuda.so.1 $< $(@D)/rest.c -o $@
$(BUILD)/test_cudnn_plan: | $(PRETEND)
$(BUILD)/test_cudnn_plan: LIBS += -Wl,--no-as-needed,--disable-new-dtags,-rpath,'$$ORIGIN/pretend' $(PRETEND)

.SECONDARY:
-include $(patsubst %,$(BUILD)/%.d,$(ZERO) $(DEV) $(PROGRAMS))

# ----------------------------------------------------------------------------------------------------------------------
# Goals

TEXT = dev/data/text/default.txt

.PHONY: help setup data all ckpt test_programs train_gpt2_zero test_gpt2_zero run test test-long fuzz bench examples \
        cuda format check-format clean install-into uninstall-from install uninstall FORCE
FORCE:

setup:
	@$(SETUP)

data: $(TEXT)
$(TEXT): | setup
	@sh dev/data/prepare_text.sh $@

train_gpt2_zero: $(TEXT)
train_gpt2_zero test_gpt2_zero: %: $(BUILD)/%
	@[ "$$(readlink $@)" = $< ] || { ln -sfn $< $@ && echo "  $@ -> $<"; }

all: $(call BINARIES,$(PROGRAMS)) ckpt
test_programs: $(call BINARIES,test_gpt2_zero $(TESTS))
examples: $(call BINARIES,$(EXAMPLES))
ckpt: $(CKPT_DIR)/ckpt

$(if $(filter run,$(MAKECMDGOALS)),$(if $(shell [ "$(NP)" -ge 1 ] 2> /dev/null && echo ok),, \
    $(error make run NP=$(NP): NP is the number of ranks, use a number from 1)))
run: train_gpt2_zero
	@mkdir -p "$(RUN_DIR)"
	NP=$(NP); . scripts/env.sh; $(MPIRUN) -np $(NP) ./train_gpt2_zero -z 2 -o "$(RUN_DIR)" --overwrite 1 $(ARGS)
	@if ! command -v python3 > /dev/null; then echo "no report: scripts/plot.py needs python3"; \
	    elif [ -e "$(RUN_DIR)/metrics.jsonl" ]; then python3 scripts/plot.py "$(RUN_DIR)"; fi

test: setup $(TEXT)
	+@bash dev/test/run_tests.sh "$(TEST)" "$(CASE)"

test-long: setup $(TEXT)
	+@bash dev/test/run_tests.sh --long "$(TEST)" "$(CASE)"

fuzz: $(TEXT)
	$(Q)$(MAKE) --no-print-directory SETUP=true PRECISION=FP32 build/$(DEVICE)-fp32/train_gpt2_zero \
	    build/$(DEVICE)-fp32/fuzz build/$(DEVICE)-fp32/fuzz_engine
	$(Q)$(MAKE) --no-print-directory SETUP=true PRECISION=BF16 USE_CUDNN=0 build/$(DEVICE)-bf16/train_gpt2_zero
	@build/$(DEVICE)-fp32/fuzz $(foreach p,fp32 bf16,build/$(DEVICE)-$(p)/train_gpt2_zero) --seconds $(SECONDS) \
	    $(SEED:%=--seed %)
	@for np in 1 2 3 5 8; do \
	    (NP=$$np; . scripts/env.sh; exec $(MPIRUN) -np $$np build/$(DEVICE)-fp32/fuzz_engine \
	        --seconds $$(($(SECONDS) / 15)) $(SEED:%=--seed %)) || exit 1; done
	$(Q)$(MAKE) --no-print-directory SETUP=true build/fuzz-$(FUZZ_WITH)/fuzz_files
	@build/fuzz-$(FUZZ_WITH)/fuzz_files --seconds $$(($(SECONDS) / 3)) $(SEED:%=--seed %)

bench: $(call BINARIES,$(BENCHES)) $(BUILD)/train_gpt2_zero $(TEXT)
	@bash dev/bench/run_bench.sh $(BUILD)

cuda:
	$(Q)$(MAKE) DEVICE=cuda PRECISION=FP32 CUDA_ARCH="80 90" all
	$(Q)$(MAKE) DEVICE=cuda PRECISION=BF16 CUDA_ARCH="80 90" all

format:
	@dev/test/check_style.sh --fix

check-format:
	@dev/test/check_style.sh

install-into uninstall-from:
	@sh scripts/install_into.sh $@ "$(LLMC)"

ifneq ($(and $(PIC),$(filter-out cpu cuda,$(DEVICE))$(SANITIZE)),)
    $(error make install is for DEVICE=cpu and cuda, without SANITIZE)
endif
install: $(if $(PIC),$(LIBRARIES))
	@CUDA_INCLUDE="$(CUDART_INCLUDE)" CUDA_LIBRARY="$(CUDART_LIBRARY)" \
	    sh scripts/install.sh $@ "$(PREFIX)" "$(DESTDIR)" $(DEVICE) $(BUILD)

uninstall:
	@sh scripts/install.sh $@ "$(PREFIX)" "$(DESTDIR)"

clean:
	rm -rf build
	rm -f train_gpt2_zero test_gpt2_zero

define HELP
make [GOAL] [DEVICE=cuda|cpu|emulated|emulated-tsan] [PRECISION=FP32|BF16] [OPTION=VALUE...]

  train_gpt2_zero  (default) the trainer, linked to ./train_gpt2_zero, and the default text
  test_gpt2_zero   sharded against unsharded training, linked to ./test_gpt2_zero
  run              train: NP=8 ranks, ZeRO stage 2; ARGS="..." are options of the trainer, RUN_DIR=$(RUN_DIR), where
                   report.html is drawn at the end
  test             every test in both precisions, on the CPU and the emulated GPU; TEST=word CASE=word select
  test-long        what takes too long for that: half an hour of fuzzing and sanitizers
  fuzz             random configurations and calls, bit for bit, and mutated files: SECONDS=60; SEED=...
  bench            the benchmarks                         examples   dev/examples
  ckpt             build/ckpt/ckpt, the tool for checkpoints: needs no MPI, no GPU (dev/docs/checkpoints.md)
  cuda             compile everything with nvcc for sm_80 and sm_90, both precisions; needs no GPU
  all              every program, nothing is run          data       the default text
  setup            install what is missing                clean      remove build/ and the links
  format           clang-format 14 on all sources         check-format   that, and the limits of lines and functions
  install-into     put zero.c into a checkout of llm.c, LLMC=DIR; its own targets stay as they are; uninstall-from
  install          the module as a library, with pkg-config files: PREFIX=/usr/local, DESTDIR; uninstall

  MARCH=native     the CPU to build for                   V=1        print the commands
  DEBUG=1          -O0 -g                                 WERROR=1   warnings are errors
  SANITIZE=...     address, undefined or thread, with DEVICE=cpu
  USE_CUDNN=0|1    attention without (with) cuDNN         NCCL=0     without the NCCL transport
  CUDA_HOME, CUDNN_HOME, NCCL_HOME                        where these are, if not in a usual place
  CFLAGS, CXXFLAGS, NVCCFLAGS, CPPFLAGS, LDFLAGS, EXTRA   added to the compilers' flags (EXTRA: to all)

Here: DEVICE=$(DEVICE) ($(WHY)), PRECISION=$(PRECISION) ($(WHY_PRECISION)), MARCH=$(MARCH), NVCC=$(or $(NVCC),none)
endef
help:
	$(info $(HELP))
	@:
