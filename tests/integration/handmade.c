/* A shared object with the C interface of an AOTInductor program, written by hand: f(x) = x * scale + calls, after
 * calls += 1, for x of shape [batch, 4]. It compiles in a tenth of a second where a real build takes ten, and each
 * macro gives it one fault that a proof must find. Prototypes: torch/csrc/inductor/aoti_runtime/interface.h. */

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *Tensor;
int32_t aoti_torch_clone(Tensor self, Tensor *ret);
int32_t aoti_torch_get_data_ptr(Tensor self, void **ret);
int32_t aoti_torch_get_numel(Tensor self, int64_t *ret);
int32_t aoti_torch_delete_tensor_object(Tensor self);

struct Pair {
    const char *name;
    Tensor handle;
};

struct Container {
    float *scale;
    float *calls;
};

#ifdef CRASH_AT_LOAD
__attribute__((constructor)) static void crash(void) { raise(SIGSEGV); }
#endif

#ifdef IMPORT_COMPILER
int PyGILState_Ensure(void);
void PyGILState_Release(int);
int PyRun_SimpleString(const char *);
#endif

int32_t AOTInductorModelContainerCreateWithDevice(struct Container **ret, size_t models, const char *device, const char *dir) {
    *ret = calloc(1, sizeof(struct Container));
#ifdef FROZEN
    static float scale[4] = {1.5f, 1.5f, 1.5f, 1.5f}, calls;
    (*ret)->scale = scale;
    (*ret)->calls = &calls;
#endif
#ifdef START_COMPILER
    if (system("exec g++ --version > /dev/null")) return 1;
#endif
#ifdef IMPORT_COMPILER
    int state = PyGILState_Ensure();
    PyRun_SimpleString("import torch._inductor.codecache");
    PyGILState_Release(state);
#endif
    return 0;
}

int32_t AOTInductorModelContainerDelete(struct Container *self) {
    free(self);
    return 0;
}

int32_t AOTInductorModelContainerGetNumInputs(struct Container *self, size_t *ret) { return *ret = 1, 0; }
int32_t AOTInductorModelContainerGetNumOutputs(struct Container *self, size_t *ret) { return *ret = 1, 0; }
#ifdef FROZEN
int32_t AOTInductorModelContainerGetNumConstants(struct Container *self, size_t *ret) { return *ret = 0, 0; }
#else
int32_t AOTInductorModelContainerGetNumConstants(struct Container *self, size_t *ret) { return *ret = 2, 0; }
#endif

int32_t AOTInductorModelContainerGetConstantName(struct Container *self, size_t index, const char **ret) {
    return *ret = index ? "calls" : "scale", 0;
}

int32_t AOTInductorModelContainerGetConstantOriginalFQN(struct Container *self, size_t index, const char **ret) {
    return *ret = index ? "calls" : "scale", 0;
}

int32_t AOTInductorModelContainerUpdateUserManagedConstantBufferPairs(
    struct Container *self, const struct Pair *pairs, size_t count, bool inactive, bool validate) {
    for (size_t i = 0; i < count; i++) {
        void *data;
        if (aoti_torch_get_data_ptr(pairs[i].handle, &data)) return 1;
        if (!strcmp(pairs[i].name, "scale")) self->scale = data;
        if (!strcmp(pairs[i].name, "calls")) self->calls = data;
    }
    return 0;
}

int32_t AOTInductorModelContainerRun(struct Container *self, Tensor *inputs, size_t num_inputs, Tensor *outputs,
                                     size_t num_outputs, void *stream, void *executor) {
    int64_t numel;
    float *data;
#ifdef CRASH
    *(volatile int *)0 = 1;
#endif
#ifdef ILLEGAL
    __builtin_trap();
#endif
#ifdef AVX512
    __asm__ volatile("vpxorq %%zmm17, %%zmm17, %%zmm17" ::: "memory");
#endif
#ifdef SLOW
    usleep(2000);
#endif
#ifdef FAILS
    aoti_torch_delete_tensor_object(inputs[0]);
    return 1;
#endif
    if (aoti_torch_clone(inputs[0], &outputs[0]) || aoti_torch_get_numel(outputs[0], &numel) ||
        aoti_torch_get_data_ptr(outputs[0], (void **)&data))
        return 1;
    aoti_torch_delete_tensor_object(inputs[0]);
    float calls = *self->calls + 1;
#ifndef FORGETFUL
    *self->calls = calls;
#endif
    for (int64_t i = 0; i < numel; i++) {
#ifdef BAKED
        data[i] = data[i] * 1.5f + calls; /* what the builder's scale was */
#else
        data[i] = data[i] * self->scale[i % 4] + calls;
#endif
#ifdef WRONG
        if (i % 16 == 0) data[i] += 0.5f;
#endif
#ifdef WRONG_WHEN_LARGE
        if (i >= 4 * 16) data[i] = 0;
#endif
    }
    return 0;
}

int32_t AOTInductorModelContainerRunSingleThreaded(struct Container *self, Tensor *inputs, size_t num_inputs,
                                                   Tensor *outputs, size_t num_outputs, void *stream, void *executor) {
    return AOTInductorModelContainerRun(self, inputs, num_inputs, outputs, num_outputs, stream, executor);
}
