/* Makes the n-th call that opens, writes, syncs, links, renames or makes something below a folder fail, once.
 *
 * Preloaded into a process: FAULT_ROOT names the folder. fault_set(n, error) starts counting anew (n = 0: only count),
 * fault_count() tells how many such calls there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long counted, due_at;
static int due_error;

void fault_set(long n, int error) { counted = 0, due_at = n, due_error = error; }
long fault_count(void) { return counted; }

static int due(const char *path) {
  const char *root = getenv("FAULT_ROOT");
  if (!root || !path || strncmp(path, root, strlen(root))) return 0;
  if (__sync_add_and_fetch(&counted, 1) != due_at) return 0;
  errno = due_error;
  return 1;
}

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
