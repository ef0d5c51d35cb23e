// A CUDA driver for machines without one, for test_cudnn_plan alone: it runs nothing. It reports that the kernels of a
// plan were loaded, so that cuDNN, which loads them as the last step of making a plan, completes it. All other
// functions of the driver return 34, cudaErrorStubLibrary, like the toolkit's own stub; the Makefile adds them.
static char something[64];

int cuDriverGetVersion(int *version);
int cuLibraryLoadData(void **library);
int cuLibraryGetKernel(void **kernel);
int cuLibraryUnload(void *library);
int cuKernelSetAttribute(void);

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

// Of these, only the first argument matters here.
int cuLibraryLoadData(void **library) {
    *library = something;
    return 0;
}

int cuLibraryGetKernel(void **kernel) {
    *kernel = something;
    return 0;
}

int cuLibraryUnload(void *library) {
    (void)library;
    return 0;
}

int cuKernelSetAttribute(void) { return 0; }
