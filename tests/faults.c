/* Makes the n-th call that opens, reads, writes, syncs, links, renames or makes something below a folder fail, once; or the
 * n-th that asks for memory.
 *
 * Preloaded into a process: FAULT_ROOT names the folder. fault_set(n, error, least) starts counting anew (n = 0: only
 * count): with least = 0 the calls below the folder, else those that ask for at least so many bytes of memory. With
 * error = 0 the process is killed at that call. fault_count() tells how many such calls there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static long counted, due_at;
static int due_error;
static size_t due_least = LONG_MAX; /* until fault_set, nothing is counted */

void fault_set(long n, int error, long least) { counted = 0, due_at = n, due_error = error, due_least = least; }
long fault_count(void) { return counted; }

static int due_now(void) {
  if (__sync_add_and_fetch(&counted, 1) != due_at) return 0;
  if (!due_error) kill(getpid(), SIGKILL);
  errno = due_error;
  return 1;
}

static int due(const char *path) {
  const char *root = due_least ? NULL : getenv("FAULT_ROOT");
  return root && path && !strncmp(path, root, strlen(root)) && due_now();
}

static int due_memory(size_t bytes) { return due_least && bytes >= due_least && due_now(); }

static int due_handle(int handle) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return 0;
  path[n] = 0;
  return due(path);
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t read(int handle, void *bytes, size_t n) {
  REAL(read);
  return due_handle(handle) ? -1 : real(handle, bytes, n);
}
ssize_t write(int handle, const void *bytes, size_t n) {
  REAL(write);
  return due_handle(handle) ? -1 : real(handle, bytes, n);
}
int fsync(int handle) {
  REAL(fsync);
  return due_handle(handle) ? -1 : real(handle);
}
int rename(const char *from, const char *to) {
  REAL(rename);
  return due(to) ? -1 : real(from, to);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
  REAL(linkat);
  return due(to) ? -1 : real(a, from, b, to, flags);
}
int mkdir(const char *path, mode_t mode) {
  REAL(mkdir);
  return due(path) ? -1 : real(path, mode);
}
int chmod(const char *path, mode_t mode) {
  REAL(chmod);
  return due(path) ? -1 : real(path, mode);
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = va_arg(more, mode_t); \
    va_end(more); \
    REAL(name); \
    return due(path) ? -1 : real(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = va_arg(more, mode_t); \
    va_end(more); \
    REAL(name); \
    return due(path) ? -1 : real(folder, path, flags, mode); \
  }
OPENAT(openat)
OPENAT(openat64)

/* glibc's own names: dlsym would ask for memory itself. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes) { return due_memory(bytes) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t n, size_t each) { return due_memory(n * each) ? NULL : __libc_calloc(n, each); }
void *realloc(void *old, size_t bytes) { return due_memory(bytes) ? NULL : __libc_realloc(old, bytes); }
void *memalign(size_t alignment, size_t bytes) { return due_memory(bytes) ? NULL : __libc_memalign(alignment, bytes); }
void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void **result, size_t alignment, size_t bytes) {
  int before = errno;
  void *memory = memalign(alignment, bytes);
  errno = before;
  if (!memory) return ENOMEM;
  *result = memory;
  return 0;
}

#define MMAP(name) \
  void *name(void *at, size_t bytes, int protection, int flags, int handle, off_t offset) { \
    if ((flags & MAP_ANONYMOUS) && due_memory(bytes)) return MAP_FAILED; \
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, handle, offset); \
  }
MMAP(mmap)
MMAP(mmap64)
