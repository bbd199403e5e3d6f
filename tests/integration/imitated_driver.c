/* Stands for libcuda.so.1 where there is no card: what it leaves on a disk of the PTX that it has compiled.

   A file for each program in two levels of directories, <hexadecimal digit>/<hexadecimal digit>/<digest>, and an
   `index` beside them that is opened, locked and added to. CUDA_CACHE_PATH and CUDA_CACHE_DISABLE are as documented
   (CUDA C++ programming guide, environment variables); the order of opens is that of a traced driver 595: the index for
   reading and writing, the entry for reading, and where there is none the entry for writing, made or cut to nothing.

   What it compiles are the multiplications and exclusive-ors of one kernel, and a launch does them here. On a hit they
   come out of the entry alone. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { uint32_t factor, mask; } Step;
enum { MOST_STEPS = 4096, NO_BINARY = 209, INVALID_PTX = 218 };
static Step steps[MOST_STEPS];
static size_t count;

static uint64_t digest_of(const char *text) {
  uint64_t found = 14695981039346656037ull;
  while (*text) found = (found ^ (unsigned char)*text++) * 1099511628211ull;
  return found;
}

static void compile(const char *ptx) {
  for (count = 0; ptx && count < MOST_STEPS; ptx = strchr(ptx + 1, '\n')) {
    if (sscanf(ptx, " mul.lo.u32 %%r0, %%r0, %u;", &steps[count].factor) == 1) continue;
    if (sscanf(ptx, " xor.b32 %%r0, %%r0, %u;", &steps[count].mask) == 1) count++;
  }
}

static void read_entry(const char *path) {
  FILE *file = fopen(path, "rb");
  count = 0;
  if (!file) return;
  count = fread(steps, sizeof *steps, MOST_STEPS, file);
  fclose(file);
}

static int write_entry(const char *path) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ssize_t wanted = (ssize_t)(count * sizeof *steps);
  int failed = file < 0 || write(file, steps, wanted) != wanted;
  if (file >= 0) close(file);
  return failed;
}

static void compile_once(const char *root, const char *ptx) {
  uint64_t digest = digest_of(ptx);
  char path[4096], name[32];
  snprintf(path, sizeof path, "%s/index", root);
  int index = open(path, O_RDWR | O_CREAT, 0600);
  if (index < 0) { compile(ptx); return; }
  flock(index, LOCK_EX);
  int first = digest >> 60, second = digest >> 56 & 15;
  snprintf(name, sizeof name, "%014llx", (unsigned long long)(digest & 0xffffffffffffffull));
  snprintf(path, sizeof path, "%s/%x/%x/%s", root, first, second, name);
  read_entry(path);
  if (!count) {
    compile(ptx);
    char place[4096];
    snprintf(place, sizeof place, "%s/%x", root, first);
    mkdir(place, 0700);
    snprintf(place, sizeof place, "%s/%x/%x", root, first, second);
    mkdir(place, 0700);
    lseek(index, 0, SEEK_END);
    if (write_entry(path) || write(index, name, strlen(name)) < 0) unlink(path);
  }
  close(index);
}

int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = steps; return 0; }
int cuCtxSetCurrent(void *context) { return context != steps; }

int cuModuleLoadData(void **module, const char *ptx) {
  const char *root = getenv("CUDA_CACHE_PATH"), *disabled = getenv("CUDA_CACHE_DISABLE");
  if (!root || (disabled && !strcmp(disabled, "1"))) compile(ptx);
  else compile_once(root, ptx);
  *module = steps;
  return count ? 0 : INVALID_PTX;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = module;
  return strcmp(name, "mix") ? NO_BINARY : 0;
}

int cuMemAlloc_v2(uint64_t *place, size_t size) { *place = (uint64_t)calloc(1, size); return !*place; }

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned t, unsigned u,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  (void)function, (void)x, (void)y, (void)z, (void)t, (void)u, (void)shared, (void)stream, (void)extra;
  uint32_t *results = (uint32_t *)*(uint64_t *)parameters[0];
  for (uint32_t thread = 0; thread < threads; thread++) {
    results[thread] = thread;
    for (size_t step = 0; step < count; step++)
      results[thread] = results[thread] * steps[step].factor ^ steps[step].mask;
  }
  return 0;
}

int cuMemcpyDtoH_v2(void *into, uint64_t from, size_t size) { memcpy(into, (void *)from, size); return 0; }
