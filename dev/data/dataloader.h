// Training data: micro-batches of tokens, by number. dataloader.c explains the order and the reasons.
//
// A micro-batch is B rows of T tokens, and for each token the one that follows it. Any rank can request any
// micro-batch, in any order: batch j of a training run is the same for all of them. So a run can be resumed, on any
// number of ranks, by arithmetic on j.
//
// Sources are found with a pattern (data/file_list.h) and used in the order of their names. Files too short for a
// micro-batch are skipped:
//
// - llm.c's token shards (256 int32: 20240520, 1, number of tokens, 0...; then the tokens as uint16), of equal or
//   different sizes;
// - any other files without NUL bytes in their first, their last and 62 blocks between: plain text. A byte is a token;
//   the vocabulary is 256. Compressed files, and text in UTF-16, are refused by name.
//
// Functions that can fail return 0, or -1 with a message in err that names the file and the remedy. Nothing is printed,
// and nothing is kept outside the Loader. Several loaders may be open; one loader must not be used by two threads at
// once.
#ifndef DEV_DATA_DATALOADER_H
#define DEV_DATA_DATALOADER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *pattern;     // of file names, as in the shell
    size_t B, T;             // rows and tokens per row in a micro-batch
    size_t vocab;            // a token id of vocab or more is an error
    unsigned begin_percent;  // the part of every file that is used: 0 and 100 for all of it; 0 and 90, then 90 and 100,
                             // to train
    unsigned end_percent;    // and validate with the same file. The parts share no token.
    int shuffle;             // 0: in the order of the files
    uint32_t seed;           // of the shuffle; llm.c's is 42
} LoaderConfig;

typedef struct {
    int is_text;     // 1: text, 0: token shards
    size_t shards;   // files, without those skipped
    size_t skipped;  // files that are too short for a micro-batch
    size_t tokens;   // in the parts used, all files together
    size_t samples;  // micro-batches in an epoch
    int max_token;   // the largest token id in the batches read so far; -1 before the first
} LoaderInfo;

typedef struct Loader Loader;

// Finds the files and checks every one: readable, right kind, right version, not truncated; and that one has enough
// tokens for a micro-batch.
int loader_open(Loader **loader, const LoaderConfig *config, char err[512]);

// Micro-batches in an epoch: the sum over files of (tokens in its part - 1) / (B * T).
size_t loader_num_samples(const Loader *l);

// Reads global micro-batch j, counted from the start of the training (epoch j / loader_num_samples(l)).
// inputs and targets: B * T each, row-major. On failure their contents are undefined and the loader remains usable.
int loader_batch(Loader *l, size_t j, int *inputs, int *targets, char err[512]);

LoaderInfo loader_info(const Loader *l);

// Counts the documents: text files, or the end-of-text tokens (eot) in shards. More than 32 MiB of tokens are not read:
// then *estimated is 1, and the number is what 64 parts of the files suggest. Returns 0, or -1 and a message.
int loader_documents(const Loader *l, int eot, size_t *documents, int *estimated, char err[512]);

// A hash of what is in the files (data/content_hash.h). Returns 0, or -1 and a message.
int loader_content_hash(const Loader *l, uint64_t *hash, char err[512]);

// What the files are called and how long they are: for each a line "BYTES NAME", without directories and control
// characters. malloc'ed; NULL: out of memory.
char *loader_files(const Loader *l);

// Closes and frees; NULL is fine.
void loader_close(Loader *l);

#ifdef __cplusplus
}
#endif
#endif
