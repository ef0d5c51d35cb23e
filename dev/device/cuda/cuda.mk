# DEVICE=cuda: where NVIDIA's libraries are, and the compilers' flags. The Makefile includes it.
#
# scripts/find_nvidia.sh sets CUDA_MAJOR, CUDNN_INCLUDE, CUDNN_LIBRARY and so on. cuDNN does the attention of BF16
# builds where it is found (dev/device/attention.h); USE_CUDNN=0 leaves it out, USE_CUDNN=1 fails without it.

HOMES := CUDA_HOME="$(CUDA_HOME)" CUDNN_HOME="$(CUDNN_HOME)" NCCL_HOME="$(NCCL_HOME)"
$(foreach line,$(shell $(HOMES) scripts/find_nvidia.sh $(NVCC)),$(eval $(subst =, := ,$(line))))
ifeq ($(and $(CUDART_LIBRARY),$(CUBLASLT_LIBRARY)),)
    $(error DEVICE=cuda, but $(if $(CUDART_LIBRARY),cublasLt.h and libcublasLt,cuda_runtime.h and libcudart) of $\
        CUDA $(CUDA_MAJOR) were not found for $(NVCC): set CUDA_HOME to where the toolkit is, or use DEVICE=cpu)
endif

ifeq ($(PRECISION),FP32)
    WHY_NO_CUDNN := cuDNN has none in FP32
else ifeq ($(USE_CUDNN),0)
    WHY_NO_CUDNN := USE_CUDNN=0
else ifneq ($(CUDNN_LIBRARY),)
    override CUDNN := $(CUDNN_LIBRARY)
else ifneq ($(CUDNN_HOME),)
    $(error no cuDNN 9.10 or later (include/cudnn.h, libcudnn.so.9) in CUDNN_HOME=$(CUDNN_HOME): unset it, or set $\
        USE_CUDNN=0)
else
    CUDNN_MISSING := nvidia-cudnn-cu$(CUDA_MAJOR)
    WHY_NO_CUDNN := no cuDNN 9.10 or later for CUDA $(CUDA_MAJOR) found: $\
        pip install $(CUDNN_MISSING) or NVIDIA's package cudnn9-cuda-$(CUDA_MAJOR)
endif
ifneq ($(and $(NCCL_HOME),$(if $(NCCL_LIBRARY),,missing)),)
    $(error no NCCL 2.19 or later (include/nccl.h, libnccl.so.2) in NCCL_HOME=$(NCCL_HOME): unset it, or set NCCL=0)
endif
GPU_LIBRARIES = ; attention: $(or $(CUDNN),own kernels ($(WHY_NO_CUDNN))); NCCL: $(if $(filter 0,$(NCCL)),NCCL=0,$\
    $(or $(NCCL_LIBRARY),not found (pip install nvidia-nccl-cu$(CUDA_MAJOR) or NVIDIA's package libnccl-dev)))

# For the GPUs found here; without one, for A100 and H100, with PTX that later GPUs can translate.
FOUND     := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | tr -d . | sort -u)
CUDA_ARCH ?= $(or $(filter-out 0,$(FOUND)),80 90)
PTX        = -gencode arch=compute_$(lastword $(CUDA_ARCH)),code=compute_$(lastword $(CUDA_ARCH))
GENCODE    = $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a)) $(PTX)

# The system's own directories need no flag, and as -isystem they would break C++.
SYSTEM     = $(addprefix $(SYSROOT)/usr/,include include/% local/include lib/ lib64/ lib/%-linux-gnu/)
FOUND_H    = $(if $(CUDNN),$(CUDNN_INCLUDE)) $(NCCL_INCLUDE) $(CUDART_INCLUDE) $(CUBLASLT_INCLUDE)
INCLUDE    = $(DEFINES) $(CUDNN_MISSING:%=-DCUDNN_MISSING='"%"') \
                 $(addprefix -isystem ,$(filter-out $(SYSTEM),$(FOUND_H)))
COMPILE_C  = $(CC) -std=c11 $(INCLUDE) $(WARNINGS) $(HOST_FAST) $(MPI_CFLAGS) $(CPPFLAGS) $(CFLAGS)
# What runs on the host needs its vector instructions, and no nvcc.
COMPILE_CXX = $(CXX) -std=c++17 $(INCLUDE) $(WARNINGS) $(HOST_FAST) $(MPI_CFLAGS) $(CPPFLAGS) $(CXXFLAGS)
# -Wmaybe-uninitialized is wrong about what nvcc generates for g++.
HOST       = -Xcompiler -Wall,-Wextra,-Wno-missing-field-initializers,-Wno-maybe-uninitialized,-fopenmp$(if \
                 $(PIC),$(COMMA)-fPIC)
COMPILE_CU = $(NVCC) -std=c++17 $(if $(DEBUG),-O0 -g -G,-O3) $(GENCODE) $(HOST) \
                 $(if $(filter-out 0,$(WERROR)),--Werror all-warnings) $(INCLUDE) $(MPI_CFLAGS) $(CPPFLAGS) $(NVCCFLAGS)
override NO_FMA_CU = -fmad=false -Xcompiler -ffp-contract=off

# Libraries by their files, since pip's packages have no plain .so. Three are loaded at run time by name: NCCL and the
# parts of cuDNN are found on the run path, but NVRTC, which cuDNN uses, only if the program has loaded it.
NVRTC      = $(wildcard $(CUDNN:%=$(dir $(CUDART_LIBRARY))libnvrtc.so.$(CUDA_MAJOR)))
RUN_PATH   = $(filter-out $(SYSTEM),$(dir $(CUDNN) $(NCCL_LIBRARY) $(CUDART_LIBRARY) $(CUBLASLT_LIBRARY)))
LIBS       = $(CUBLASLT_LIBRARY) $(CUDART_LIBRARY) $(RUN_PATH:%/=-Wl,-rpath,%) \
                 -Wl,--push-state,--as-needed $(CUDNN) -Wl,--no-as-needed $(NVRTC) -Wl,--pop-state
DEVICE_DIR = dev/device/cuda
# dev/device/cuda/calls.cu counts them.
COUNTED    = cudaLaunchKernelExC cudaMemcpyAsync cudaMemsetAsync cudaStreamSynchronize cudaEventSynchronize \
                 cudaDeviceSynchronize
