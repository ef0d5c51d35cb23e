#include "trainer/resume_llmc.h"

#include <stdlib.h>

#include "trainer/checkpoint.h"
#include "trainer/checkpoint_llmc.h"

typedef struct Reader {
    const LlmcSet *set;
    size_t array;
    char err[ERR_BYTES];
} Reader;

static int read_values(void *ctx, size_t tensor, size_t begin, size_t count, float *out) {
    Reader *r = ctx;
    return llmc_set_read(r->set, r->array, tensor, begin, count, out, r->err, sizeof r->err);
}

// Master weights set the parameters too, but without any of its own a run takes llm.c's parameters, rounded as they
// are.
static void load(Run *r, const LlmcSet *s) {
    const zero_settings *mine = &r->options.settings;
    const int keeps_master = mine->dtype == ZERO_F32 || mine->master != ZERO_MASTER_NONE,
              takes_master = keeps_master && s->c.has_master;
    Reader *reader = allocate(sizeof *reader);
    reader->set = s;
    for (reader->array = 0; reader->array < s->c.num_arrays; reader->array++) {
        const enum zero_state state = s->c.arrays[reader->array].state;
        if (state == (takes_master ? ZERO_STATE_PARAMS : ZERO_STATE_MASTER)) continue;
        int status = zero_load(r->z, state, read_values, reader);
        if (status == ZERO_OK && state < ZERO_STATE_OPTIMIZER && mine->ema_decay > 0)
            status = zero_load(r->z, ZERO_STATE_EMA, read_values, reader);
        if (reader->err[0] != '\0') die("%s", reader->err);
        must(r, status, "loading a checkpoint of llm.c");
    }
    free(reader);
    must(r, zero_set_updates(r->z, s->c.updates), "updates so far");
    r->first_step = s->c.step;
}

static void report(const Run *r, const LlmcSet *s) {
    const int another_order = s->ranks > 1, random = r->options.settings.dtype == ZERO_BF16;
    print0(r, "resumed from step %zu of %s, which llm.c has written on %zu rank%s in stage %d\n", s->c.step, s->dir,
           s->ranks, s->ranks == 1 ? "" : "s", s->stage);
    if (another_order || random)
        print0(r, "not as llm.c would continue:%s%s%s\n",
               another_order ? " the order of the data, which in llm.c depends on the number of ranks" : "",
               another_order && random ? ";" : "",
               random ? " the rounding of the weights to bf16, with other random numbers or to nearest" : "");
}

int resume_llmc(Run *r, size_t step, char *err) {
    LlmcSet *s = allocate(sizeof *s);
    err[0] = '\0';
    if (llmc_set_open(s, r->options.output_dir, step, err, ERR_BYTES) == 0)
        llmc_set_verify(s, (size_t)r->rank, (size_t)r->ranks, err, ERR_BYTES);
    const int complete = !first_failure(r, err);
    if (complete) {
        check_same_model(r, &s->c.config, s->model.path);
        check_same_optimizer(r, s->c.optimizer, s->model.path);
        check_step(r, step, s->model.path);
        load(r, s);
        report(r, s);
    }
    llmc_set_close(s);
    free(s);
    return complete;
}
