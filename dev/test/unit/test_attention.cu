// test_attention.cu: the kernels of attention against a reference in double, without the rest of the model
// (test_model.cu has the same cases among others). For BF16 builds of the emulated GPU, where they run on its tensor
// cores: in several schedules, under ThreadSanitizer, and with planted faults (test_planted_attention.sh). That build
// also counts what all hot kernels ask of memory.
#include <algorithm>

#include "test/harness/numerics.h"
#include "test/harness/reference.h"
#include "test/unit/attention_kernels.cuh"
#include "test/emulator/memory_requests.cuh"

int main(int argc, char **argv) {
    numeric_start(&argc, argv);
    RUN(attention_does_not_fit_a_block);
    RUN(attention_kernel_is_wrong);
    printf("hash of all results: %016llx\n", (unsigned long long)attention_bits);
    RUN(long_attention_is_wrong);
    RUN_MEMORY_REQUESTS();
    return test_finish();
}
