# Makefile of zero.c: one source, three kinds of machine.
#
#   make                    builds ./train_gpt2_zero and a text to train on
#   make run                trains: 8 ranks, ZeRO stage 2, real text (make run NP=4 ARGS="-x 100")
#   make test               every test, both precisions
#   make help               everything else
#
# The same .cu files are compiled by nvcc (DEVICE=cuda), or by g++ with dev/device/cpu first on the include path, where
# cuda_runtime.h is a CUDA runtime for the CPU: DEVICE=cpu runs at the speed of hand-written loops; DEVICE=emulated runs warps and
# blocks as a GPU does, slowly, under AddressSanitizer and UBSan (emulated-tsan: under ThreadSanitizer). PRECISION is FP32 or BF16. What is not asked for is chosen by the
# machine, and the first line of the build says what was chosen and why. Each pair (device, precision) has a directory of its own,
# build/<device>-<precision>, so switching costs nothing and mixes nothing; ./train_gpt2_zero is a link to the one asked for last.
#
# There are two libraries, and each program is one source file linked with them: libzero.a is the module, zero/, as another program
# would take it; libdev.a is what stands around it here. A library gives a program only what it calls, so a test of the layout
# needs no MPI at run time. Everything depends on `setup` in order only: on a fresh machine it installs what is missing
# first, elsewhere it takes a fraction of a second (SETUP=true leaves it out).

NP        ?= 8
PRECISION ?=
MARCH     ?= native
MPIRUN    ?= mpirun
SETUP     ?= scripts/setup.sh
RUN_DIR   ?= build/run
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
# Which device, which precision, and why

NVCC      := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
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
    $(error DEVICE=cuda, but there is no nvcc in PATH, $$CUDA_HOME/bin or /usr/local/cuda/bin: set CUDA_HOME, or use DEVICE=cpu)
endif
ifeq ($(DEVICE)$(wildcard $(addsuffix /cuda_runtime.h,$(CUDA_HOME)/include $(subst :, ,$(CPATH)))),cuda)
    $(error DEVICE=cuda, but there is no include/cuda_runtime.h in CUDA_HOME=$(CUDA_HOME): set CUDA_HOME to where the toolkit is, or leave it out)
endif

comma := ,
# USE_CUDNN=1: attention by cuDNN (dev/device/attention.h).
CUDNN := $(filter-out 0,$(USE_CUDNN))
ifneq ($(CUDNN),)
    CUDNN_H := $(firstword $(wildcard $(addsuffix /cudnn.h,$(or $(CUDNN_HOME:%=%/include),$(CUDA_HOME)/include /usr/include /usr/include/$(shell uname -m)-linux-gnu))))
    ifneq ($(DEVICE),cuda)
        $(error USE_CUDNN=1 is for DEVICE=cuda, and this is DEVICE=$(DEVICE) ($(WHY)): add DEVICE=cuda, or leave it out)
    endif
    ifneq ($(PRECISION),BF16)
        $(error USE_CUDNN=1 is for PRECISION=BF16: cuDNN has no flash attention in FP32; leave it out, or use BF16)
    endif
    ifeq ($(CUDNN_H),)
        $(error USE_CUDNN=1, but there is no cudnn.h$(CUDNN_HOME:%= in %/include): install NVIDIA's package cudnn9-cuda-$(or $(shell $(NVCC) --version | sed -n 's/.*release \([0-9]*\).*/\1/p'),13) (Debian, Ubuntu), set CUDNN_HOME to where include/cudnn.h is, or leave USE_CUDNN out)
    endif
endif

BUILD := build/$(DEVICE)-$(if $(filter BF16,$(PRECISION)),bf16,fp32)$(if $(CUDNN),-cudnn)

ifneq ($(filter-out help setup data clean test test-long fuzz cuda,$(or $(MAKECMDGOALS),$(.DEFAULT_GOAL))),)
    $(info $(BUILD): device $(DEVICE) ($(WHY)), precision $(PRECISION) ($(WHY_PRECISION))$(if $(CUDNN),$(comma) attention by cuDNN))
endif

# ----------------------------------------------------------------------------------------------------------------------
# Compilers. `mpicc` is asked in the recipe, not here: setup may have to install it first.

MPI_CFLAGS = $$(mpicc --showme:compile)
MPI_LIBS   = $$(mpicc --showme:link)
DEFINES    = -I. -Idev -D_GNU_SOURCE $(if $(filter BF16,$(PRECISION)),-DPRECISION_BF16) $(if $(filter 0,$(NCCL)),-DZERO_WITHOUT_NCCL) $(if $(CUDNN),-DUSE_CUDNN)
WARNINGS   = -Wall -Wextra -Werror
HOST_FAST  = -O3 $(MARCH:%=-march=%) -fno-math-errno -fno-trapping-math -fopenmp
EMULATED   = -Og -g1 -fno-omit-frame-pointer -fopenmp -DCUDA_ON_CPU_EMULATED
ASAN       = -fsanitize=address,undefined -fno-sanitize-recover=all -fsanitize-sections=cuda_on_cpu_shared
TSAN       = -fsanitize=thread -DCUDA_ON_CPU_TSAN

ifeq ($(DEVICE),cuda)
    # The architecture of the GPU that is here; without one, those of A100 and H100, and code that later ones can translate.
    FOUND     := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | tr -d . | sort -u)
    CUDA_ARCH ?= $(or $(filter-out 0,$(FOUND)),80 90)
    GENCODE    = $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a)) $(PTX)
    PTX        = -gencode arch=compute_$(lastword $(CUDA_ARCH)),code=compute_$(lastword $(CUDA_ARCH))
    INCLUDE    = $(DEFINES) -isystem $(CUDA_HOME)/include
    COMPILE_C  = $(CC) -std=c11 $(INCLUDE) $(WARNINGS) $(HOST_FAST) $(MPI_CFLAGS)
    HOST       = -Xcompiler -Wall,-Wextra,-Wno-maybe-uninitialized,-fopenmp     # of what nvcc makes for g++, that warning is wrong
    COMPILE_CU = $(NVCC) -std=c++17 -O3 $(GENCODE) --Werror all-warnings $(HOST) $(DEFINES) $(MPI_CFLAGS)
    LIBS       = -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart
    ifneq ($(CUDNN),)
        INCLUDE  = $(DEFINES) -isystem $(dir $(CUDNN_H)) -isystem $(CUDA_HOME)/include      # CUDA_HOME may have another cuDNN
        LIBS    := $(CUDNN_HOME:%=-L%/lib64 -L%/lib -Wl,-rpath,%/lib64 -Wl,-rpath,%/lib) $(LIBS) -Wl,--push-state,--as-needed -lcudnn -Wl,--pop-state
    endif
    NO_FMA_CU  = -fmad=false
    DEVICE_DIR = dev/device/cuda
else
    FLAGS_cpu           = $(HOST_FAST)
    FLAGS_emulated      = $(EMULATED) $(ASAN)
    FLAGS_emulated-tsan = $(EMULATED) $(TSAN)
    FLAGS      = $(FLAGS_$(DEVICE))
    INCLUDE    = -Idev/device/cpu $(DEFINES)
    COMPILE_C  = $(CC) -std=c11 $(INCLUDE) $(WARNINGS) $(FLAGS) $(MPI_CFLAGS)
    COMPILE_CU = $(CXX) -std=c++17 -x c++ $(INCLUDE) $(WARNINGS) $(FLAGS) $(MPI_CFLAGS)
    NO_FMA_CU  = -ffp-contract=off
    DEVICE_DIR = dev/device/cpu
    LIBS       = -rdynamic -Wl,-u,ncclGetVersion        # NCCL's calls are looked up at run time, in the program itself
endif
LINK  = $(CXX) $(filter -f%,$(FLAGS)) -fopenmp
LIBS += -Wl,--as-needed -lxxhash $(MPI_LIBS) -ldl -lm

# ----------------------------------------------------------------------------------------------------------------------
# Sources: a file that is added to a directory is built, a program is what its name or directory says

strip_suffix = $(basename $(wildcard $(1)))
TESTS    := $(call strip_suffix,dev/test/*/test_*.c dev/test/*/test_*.cu $(if $(filter emulated%,$(DEVICE)),dev/test/emulator/planted_faults.cu))
TESTS    := $(filter-out $(if $(filter cuda,$(DEVICE)),dev/test/ranks/test_overlap),$(TESTS))     # it reads the trace of the CPU's runtime
TESTS    := $(filter-out $(if $(CUDNN),,dev/test/cuda/test_cudnn_plan),$(TESTS))
BENCHES  := $(call strip_suffix,dev/bench/*.c dev/bench/*.cu)
FUZZ     := dev/test/ranks/fuzz
EXAMPLES := $(call strip_suffix,dev/examples/*.c)
TOOLS    := $(call strip_suffix,dev/data/tokenize_bytes.c)
PROGRAMS := train_gpt2_zero test_gpt2_zero $(TESTS) $(FUZZ) $(BENCHES) $(EXAMPLES) $(TOOLS)
ZERO     := $(call strip_suffix,zero/*.c zero/*.cu zero/comm/*.c zero/comm/*/*.c)
DEV      := $(filter-out $(PROGRAMS),$(call strip_suffix,dev/gpt2/*.c dev/trainer/*.c dev/data/*.c dev/test/harness/*.c \
                $(DEVICE_DIR)/*.cu $(DEVICE_DIR)/*.cpp $(if $(CUDNN),dev/device/cuda/*.c)))
BINARIES  = $(addprefix $(BUILD)/,$(notdir $(1)))

# Objects are made anew when the commands that make them change, not only when the sources do.
$(BUILD)/commands: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(COMPILE_C) / $(COMPILE_CU))' | cmp -s - $@ || \
	    printf '%s\n' '$(subst ','\'',$(COMPILE_C) / $(COMPILE_CU))' > $@

define COMPILE
@mkdir -p $(@D)
@echo "  compile $<"
$(Q)$(1) -MMD -MP $(EXTRA) -c $< -o $@
endef
$(BUILD)/%.o: %.c $(BUILD)/commands | setup
	$(call COMPILE,$(COMPILE_C))
$(BUILD)/%.o: %.cu $(BUILD)/commands | setup
	$(call COMPILE,$(COMPILE_CU))
$(BUILD)/%.o: %.cpp $(BUILD)/commands | setup
	$(call COMPILE,$(COMPILE_CU))

# Machine code of one architecture (GENCODE=-arch=sm_90) for dev/test/cuda/check_cuda.sh. Beside it: the PTX it was made from, and, in .log, the
# registers and memory that each kernel takes.
$(BUILD)/%.cubin: %.cu $(BUILD)/commands | setup
	@mkdir -p $(@D)
	@echo "  compile $< $(GENCODE)"
	$(Q)$(COMPILE_CU) $(EXTRA) -cubin -keep -keep-dir $(@D) -Xptxas -v $< -o $@ > $(basename $@).log 2>&1 || { cat $(basename $@).log; exit 1; }

# The optimizer and the sums over ranks, and the baseline they are compared with, promise bits: a * b + c is two roundings there.
$(BUILD)/zero/kernels.o $(BUILD)/zero/kernels.cubin: EXTRA = $(NO_FMA_CU)
$(BUILD)/dev/test/harness/baseline.o: EXTRA = -ffp-contract=off
# ThreadSanitizer cannot instrument the switch from one fiber to another.
build/emulated-tsan-fp32/dev/device/cpu/emulated.o build/emulated-tsan-bf16/dev/device/cpu/emulated.o: EXTRA = -fno-sanitize=thread

$(BUILD)/libzero.a: $(ZERO:%=$(BUILD)/%.o)
$(BUILD)/libdev.a: $(DEV:%=$(BUILD)/%.o)
$(BUILD)/libzero.a $(BUILD)/libdev.a:
	$(Q)rm -f $@ && ar qcs $@ $^

define PROGRAM
$(BUILD)/$(notdir $(1)): $(BUILD)/$(1).o $(BUILD)/libzero.a $(BUILD)/libdev.a
	@echo "  link    $$@"
	$$(Q)$$(LINK) $$< -o $$@ -Wl,--start-group $(BUILD)/libzero.a $(BUILD)/libdev.a -Wl,--end-group $$(LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call PROGRAM,$(p))))

$(BUILD)/bench_matmul: LIBS += -lopenblas

# Plans of cuDNN need a driver, though no GPU: one that pretends. What it does not have, it has as in the toolkit's own empty libcuda.so.
PRETEND = $(BUILD)/pretend/libcuda.so.1
$(PRETEND): dev/test/cuda/pretend_driver.c $(BUILD)/commands
	@mkdir -p $(@D)
	$(Q)nm -D --defined-only $(CUDA_HOME)/lib64/stubs/libcuda.so | sed -n 's/.* [TW] \(cu[A-Z].*\)/__attribute__((weak)) int \1(void) { return 34; }/p' > $(@D)/rest.c
	$(Q)$(CC) -shared -fPIC $(WARNINGS) -Wl,-soname,libcuda.so.1 $< $(@D)/rest.c -o $@
$(BUILD)/test_cudnn_plan: | $(PRETEND)
$(BUILD)/test_cudnn_plan: LIBS += -Wl,--no-as-needed,--disable-new-dtags,-rpath,'$$ORIGIN/pretend' $(PRETEND)

.SECONDARY:
-include $(patsubst %,$(BUILD)/%.d,$(ZERO) $(DEV) $(PROGRAMS))

# ----------------------------------------------------------------------------------------------------------------------
# Goals

TEXT = dev/data/text/default.txt

.PHONY: help setup data all test_programs train_gpt2_zero test_gpt2_zero run test test-long fuzz bench examples cuda clean FORCE
FORCE:

setup:
	@$(SETUP)

data: $(TEXT)
$(TEXT): | setup
	@sh dev/data/prepare_text.sh $@

train_gpt2_zero: $(TEXT)
train_gpt2_zero test_gpt2_zero: %: $(BUILD)/%
	@[ "$$(readlink $@)" = $< ] || { ln -sfn $< $@ && echo "  $@ -> $<"; }

all: $(call BINARIES,$(PROGRAMS))
test_programs: $(call BINARIES,test_gpt2_zero $(TESTS))
examples: $(call BINARIES,$(EXAMPLES))

run: train_gpt2_zero
	@mkdir -p $(RUN_DIR)
	NP=$(NP); . scripts/env.sh; $(MPIRUN) -np $(NP) ./train_gpt2_zero -z 2 -o $(RUN_DIR) $(ARGS)

test: setup $(TEXT)
	+@bash dev/test/run_tests.sh "$(TEST)" "$(CASE)"

test-long: setup $(TEXT)
	+@bash dev/test/run_tests.sh --long "$(TEST)" "$(CASE)"

fuzz: $(TEXT)
	$(Q)$(MAKE) --no-print-directory SETUP=true PRECISION=FP32 build/$(DEVICE)-fp32/train_gpt2_zero build/$(DEVICE)-fp32/fuzz
	$(Q)$(MAKE) --no-print-directory SETUP=true PRECISION=BF16 build/$(DEVICE)-bf16/train_gpt2_zero
	@build/$(DEVICE)-fp32/fuzz --build build/$(DEVICE) --seconds $(SECONDS) $(SEED:%=--seed %)

bench: $(call BINARIES,$(BENCHES)) $(BUILD)/train_gpt2_zero $(TEXT)
	@bash dev/bench/run_bench.sh $(BUILD)

cuda:
	$(Q)$(MAKE) DEVICE=cuda PRECISION=FP32 CUDA_ARCH="80 90" all
	$(Q)$(MAKE) DEVICE=cuda PRECISION=BF16 CUDA_ARCH="80 90" all

clean:
	rm -rf build
	rm -f train_gpt2_zero test_gpt2_zero

help:
	@echo "make [goal] [DEVICE=cuda|cpu|emulated|emulated-tsan] [PRECISION=FP32|BF16] [USE_CUDNN=1] [NCCL=0] [V=1: show the commands]"
	@echo
	@echo "  train_gpt2_zero  (default) the trainer, linked to ./train_gpt2_zero, and the default text"
	@echo "  test_gpt2_zero   sharded against unsharded training, linked to ./test_gpt2_zero"
	@echo "  run              train: NP=8 ranks, ZeRO stage 2; ARGS=\"...\" adds options of the trainer, RUN_DIR=$(RUN_DIR)"
	@echo "  test             every test in both precisions, on the CPU and the emulated GPU; TEST=word CASE=word select"
	@echo "  test-long        what takes too long for that: half an hour of fuzzing and sanitizers"
	@echo "  fuzz             random configurations against plain ones, bit for bit: SECONDS=60, SEED=... for the same ones again"
	@echo "  bench            the benchmarks        examples  dev/examples      all   every program, nothing run"
	@echo "  cuda             compile everything with nvcc for sm_80 and sm_90, both precisions; needs no GPU"
	@echo "  setup            install what is missing (scripts/setup.sh)        data  the default text"
	@echo "  clean            remove build/ and the links"
	@echo
	@echo "Here: DEVICE=$(DEVICE) ($(WHY)), PRECISION=$(PRECISION) ($(WHY_PRECISION)), MARCH=$(MARCH), NVCC=$(or $(NVCC),none)"
