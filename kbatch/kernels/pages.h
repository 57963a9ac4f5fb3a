/* Memory of the operating system, in huge pages where it offers them. */
#ifndef KBATCH_PAGES_H
#define KBATCH_PAGES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The size of a huge page on x86-64 and on arm64 with 4 KiB pages, and the alignment that lets the kernel use one. */
#define KB_HUGE_PAGE ((size_t)2 << 20)

/* Smaller blocks come from the allocator. */
#define KB_MIN_MAPPED ((size_t)256 << 10)

/* Large blocks do not come from the allocator: in a fragmented heap, a read of 24 MiB took up to 45 MiB, and one of
   4 MiB up to 20 MiB. Sizes are whole pages. */
static inline void *kb_map(size_t size, size_t alignment) {
    if (size < KB_MIN_MAPPED) {
        void *p = NULL;
        return posix_memalign(&p, alignment, size) == 0 ? p : NULL;
    }
    /* Mappings begin at a page. */
    size_t extra = alignment < KB_HUGE_PAGE ? 0 : alignment;
    char *p = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (!extra)
        return p;
    char *aligned = (char *)(((uintptr_t)p + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (aligned > p)
        munmap(p, aligned - p);
    munmap(aligned + size, p + alignment - aligned);
    return aligned;
}

/* Ask for huge pages. This is only advice: the memory is usable without them. */
static inline void kb_want_huge(void *p, size_t size) {
#if defined(MADV_HUGEPAGE)
    (void)madvise(p, size, MADV_HUGEPAGE);
#else
    (void)p;
    (void)size;
#endif
}

/* Return the pages that lie within memory to the operating system; the memory stays usable, its contents are lost. */
static inline void kb_discard(char *p, size_t n) {
#if defined(MADV_DONTNEED)
    uintptr_t start = ((uintptr_t)p + 4095) & ~(uintptr_t)4095;
    uintptr_t end = ((uintptr_t)p + n) & ~(uintptr_t)4095;
    if (end > start)
        (void)madvise((void *)start, end - start, MADV_DONTNEED);
#else
    (void)p;
    (void)n;
#endif
}

/* Free memory of `kb_map`. */
static inline void kb_unmap(void *p, size_t size) {
    if (size < KB_MIN_MAPPED)
        free(p);
    else
        munmap(p, size);
}

/* Ask for huge pages for memory of any alignment that is about to be filled: a page fault for each 4 KiB costs more than
   filling them. */
static inline void kb_expect_fill(char *p, size_t n) {
    uintptr_t start = ((uintptr_t)p + 4095) & ~(uintptr_t)4095;
    uintptr_t end = ((uintptr_t)p + n) & ~(uintptr_t)4095;
    if (n >= (4u << 20) && end > start)
        kb_want_huge((void *)start, end - start);
}

#endif
