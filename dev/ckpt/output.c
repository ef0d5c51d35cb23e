#include "ckpt/output.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "ckpt/source.h"
#include "gpt2/tensors.h"
#include "zero/master_weights.h"

#define FAIL(...) (snprintf(err, ERR_BYTES, __VA_ARGS__), -1)

int output_name(char *out, size_t bytes, const char *path, char *err) {
    static unsigned long long nonce;
    if (nonce == 0 && getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) nonce = (unsigned long long)getpid();
    if (strlen(path) > 4040) return FAIL("%.200s...: the name is too long: choose a shorter one", path);
    snprintf(out, bytes, "%s.%016llx.tmp", path, nonce);
    if (path[0] != '\0' && access(path, F_OK) == 0)
        return FAIL("%s: exists, and nothing is replaced: give another name", path);
    return 0;
}

size_t output_round(float *values, size_t n) {
    size_t changed = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, values + i, sizeof word);
        const uint32_t rounded = zero_master_round(word) << 16;
        changed += rounded != word;
        memcpy(values + i, &rounded, sizeof rounded);
    }
    return changed;
}

void print_lost(size_t lost, const GPT2Config *c) {
    if (lost > 0)
        printf("lost: the lower 16 bits of %zu of %zu weights\n", lost, gpt2_num_parameters(c));
    else
        printf("nothing is lost\n");
}

int for_tensors(size_t count, tensor_fn work, void *ctx, char *err) {
    int status = 0;
#pragma omp parallel for schedule(dynamic)
    for (size_t t = 0; t < count; t++) {
        char mine[ERR_BYTES] = "";
        int before;
#pragma omp atomic read
        before = status;
        if (before != 0 || work(ctx, t, mine) == 0) continue;
#pragma omp critical(first_failure)
        {
            if (status == 0) memcpy(err, mine, sizeof mine);
#pragma omp atomic write
            status = -1;
        }
    }
    return status;
}

// to[j][i] = from[i][j], in squares that the cache holds.
static void transpose_block(const float *from, float *to, size_t rows, size_t columns) {
    enum { SIDE = 32 };
    for (size_t i0 = 0; i0 < rows; i0 += SIDE)
        for (size_t j0 = 0; j0 < columns; j0 += SIDE)
            for (size_t j = j0; j < j0 + SIDE && j < columns; j++)
                for (size_t i = i0; i < i0 + SIDE && i < rows; i++) to[j * rows + i] = from[i * columns + j];
}

int copy_tensor(void *ctx, size_t tensor, size_t rows, size_t columns, int transpose, elements_fn read,
                elements_fn write, char *err) {
    const size_t most = (size_t)1 << 22, fit = columns < most ? most / columns : 1, block = fit < rows ? fit : rows;
    float *values = malloc(2 * block * columns * sizeof *values), *turned = values + block * columns;
    int status = values == NULL ? FAIL("out of memory") : 0;
    for (size_t row = 0; row < rows && status == 0; row += block) {
        const size_t n = rows - row < block ? rows - row : block;
        status = read(ctx, tensor, row * columns, n * columns, values, err);
        if (status == 0 && !transpose) status = write(ctx, tensor, row * columns, n * columns, values, err);
        if (!transpose || status != 0) continue;
        transpose_block(values, turned, n, columns);
        for (size_t j = 0; j < columns && status == 0; j++)
            status = write(ctx, tensor, j * rows + row, n, turned + j * n, err);
    }
    free(values);
    return status;
}
