/* A library for LD_PRELOAD: reading a file named KBATCH_FAULT_PATH fails with EIO from byte KBATCH_FAULT_AT on, as on a
 * disk with a bad sector. A read that begins earlier ends before this byte. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* The bytes before the fault of a read at `position`: 0 for none, and LONG_MAX in any other file. */
static long allowed(int fd, long position) {
    const char *name = getenv("KBATCH_FAULT_PATH");
    const char *at = getenv("KBATCH_FAULT_AT");
    char link[64], path[PATH_MAX];
    if (name == NULL || at == NULL)
        return LONG_MAX;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return LONG_MAX;
    path[length] = 0;
    const char *slash = strrchr(path, '/');
    if (slash == NULL || strcmp(slash + 1, name) != 0)
        return LONG_MAX;
    long rest = atol(at) - position;
    return rest > 0 ? rest : 0;
}

static ssize_t failed(void) {
    errno = EIO;
    return -1;
}

#define NEXT(name, ...) ((ssize_t (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

ssize_t read(int fd, void *buffer, size_t size) {
    long most = size ? allowed(fd, lseek(fd, 0, SEEK_CUR)) : LONG_MAX;
    if (most == 0)
        return failed();
    return NEXT("read", int, void *, size_t)(fd, buffer, size < (size_t)most ? size : (size_t)most);
}

ssize_t pread64(int fd, void *buffer, size_t size, off_t position) {
    long most = size ? allowed(fd, position) : LONG_MAX;
    if (most == 0)
        return failed();
    return NEXT("pread64", int, void *, size_t, off_t)(fd, buffer, size < (size_t)most ? size : (size_t)most, position);
}

ssize_t pread(int fd, void *buffer, size_t size, off_t position) { return pread64(fd, buffer, size, position); }

/* Callers check the number of bytes that they get, so only the first buffer is filled in the file with the fault. */
ssize_t preadv64v2(int fd, const struct iovec *buffers, int count, off_t position, int flags) {
    if (count > 0 && allowed(fd, position) != LONG_MAX)
        return pread64(fd, buffers[0].iov_base, buffers[0].iov_len, position);
    return NEXT("preadv64v2", int, const struct iovec *, int, off_t, int)(fd, buffers, count, position, flags);
}

ssize_t preadv64(int fd, const struct iovec *buffers, int count, off_t position) {
    return preadv64v2(fd, buffers, count, position, 0);
}

ssize_t preadv(int fd, const struct iovec *buffers, int count, off_t position) {
    return preadv64v2(fd, buffers, count, position, 0);
}

ssize_t preadv2(int fd, const struct iovec *buffers, int count, off_t position, int flags) {
    return preadv64v2(fd, buffers, count, position, flags);
}
