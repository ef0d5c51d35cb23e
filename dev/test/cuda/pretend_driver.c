// A CUDA driver for machines without one, for test_cudnn_plan alone: it runs nothing. It says that the kernels of a
// plan were loaded, so that cuDNN, which loads them as the last step of making a plan, gets that far. All else of the
// driver answers 34, cudaErrorStubLibrary, as the toolkit's own stub does: the Makefile adds that.
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
