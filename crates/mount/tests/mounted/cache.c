/*
 * Data that goes past the kernel's cache beside data that goes through it.
 *
 * map FILE                   a page of a file that is open with O_DIRECT, mapped, beyond whose end the page goes on
 * strict FILE DEPTH WRITES   asynchronous direct writes; each is read through the cache when it has ended
 * late FILE DEPTH WRITES     the same, read through the cache when all have ended; for some time it may be old
 *
 * Prints "ok", or what is wrong. Readers through the cache and through a mapping run beside the writes. Nothing lasts longer
 * than LIFETIME.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 256, SIZE = BLOCK * BLOCKS, LIFETIME = 40, LATE = 20 };

static void must(int holds, const char *what) {
    if (!holds) {
        printf("%s: %s\n", what, strerror(errno));
        fflush(stdout);
        kill(0, SIGKILL);
    }
}

static int map_page(const char *name) {
    for (int size = 100; size <= 5000; size += 4900) {
        int file = open(name, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0644);
        must(file >= 0 && ftruncate(file, size) == 0, "open");
        for (int i = 0; i < 2; i++) {
            char *page = mmap(NULL, size, PROT_READ, i ? MAP_PRIVATE : MAP_SHARED, file, 0);
            must(page != MAP_FAILED, "mmap");
            must(page[0] == 0 && page[size - 1] == 0, "content");
            must(munmap(page, size) == 0, "munmap");
            must(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
        }
        close(file);
    }
    return 0;
}

/* Has the cache filled again and again. */
static pid_t reader(const char *name, int is_mapped) {
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIFETIME);
    int file = open(name, O_RDONLY);
    must(file >= 0, "open");
    char *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, file, 0);
    must(map != MAP_FAILED, "mmap");
    static char data[1 << 17];
    for (volatile unsigned sum = 0;;) {
        for (int at = 0; at < SIZE; at += is_mapped ? BLOCK : (int)sizeof data)
            if (is_mapped)
                sum += map[at];
            else
                must(pread(file, data, sizeof data, at) == sizeof data, "read");
        if (is_mapped)
            madvise(map, SIZE, MADV_DONTNEED);
    }
}

static uint32_t value_at(int file, int block) {
    uint32_t value;
    must(pread(file, &value, sizeof value, (off_t)block * BLOCK) == sizeof value, "read");
    return value;
}

static int write_blocks(const char *name, int depth, int writes, int is_strict) {
    static uint32_t wanted[BLOCKS];
    aio_context_t context = 0;
    int direct = open(name, O_RDWR | O_DIRECT), cached = open(name, O_RDONLY);
    must(direct >= 0 && cached >= 0, "open");
    must(syscall(SYS_io_setup, depth, &context) == 0, "io_setup");
    struct iocb *calls = calloc(depth, sizeof *calls);
    char *data = NULL;
    must(posix_memalign((void **)&data, BLOCK, (size_t)depth * BLOCK) == 0, "memory");
    pid_t readers[] = {reader(name, 0), reader(name, 1)};
    int submitted = 0, ended = 0, old = 0;
    /* Slot n has the blocks n, n + depth, ...: no two writes of a block are under way at a time. */
    while (ended < writes) {
        struct io_event event;
        int slot;
        if (submitted < depth && submitted < writes)
            slot = submitted;
        else {
            struct timespec limit = {LIFETIME, 0};
            must(syscall(SYS_io_getevents, context, 1, 1, &event, &limit) == 1, "io_getevents");
            must(event.res == BLOCK, "write");
            slot = event.data;
            int block = calls[slot].aio_offset / BLOCK;
            wanted[block] = *(uint32_t *)(data + slot * BLOCK);
            if (is_strict && value_at(cached, block) != wanted[block])
                old++;
            ended++;
        }
        if (submitted == writes)
            continue;
        int block = slot + depth * (rand() % ((BLOCKS - slot + depth - 1) / depth));
        uint32_t *words = (uint32_t *)(data + slot * BLOCK);
        submitted++;
        for (int i = 0; i < BLOCK / 4; i++)
            words[i] = submitted;
        struct iocb *call = calls + slot;
        *call = (struct iocb){.aio_data = slot, .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = direct,
            .aio_buf = (uintptr_t)words, .aio_nbytes = BLOCK, .aio_offset = (off_t)block * BLOCK};
        must(syscall(SYS_io_submit, context, 1, &call) == 1, "io_submit");
    }
    for (int i = 0; i < 2; i++)
        kill(readers[i], SIGKILL);
    for (int tries = 0; tries < LATE * 10; tries++) {
        int late = 0;
        for (int block = 0; block < BLOCKS; block++) {
            static uint32_t stored[BLOCK / 4] __attribute__((aligned(BLOCK)));
            must(pread(direct, stored, BLOCK, (off_t)block * BLOCK) == BLOCK, "direct read");
            must(stored[0] == wanted[block], "a write is lost");
            late += value_at(cached, block) != wanted[block];
        }
        if (late == 0 || is_strict) {
            old += late;
            break;
        }
        if (tries == LATE * 10 - 1)
            old += late;
        usleep(100000);
    }
    if (old > 0)
        printf("%d of %d reads through the cache were old\n", old, writes);
    return old > 0;
}

int main(int count, char **words) {
    setpgid(0, 0);
    alarm(LIFETIME);
    must(count >= 3, "words");
    int is_strict = strcmp(words[1], "strict") == 0;
    int failed = count == 3 ? map_page(words[2]) : write_blocks(words[2], atoi(words[3]), atoi(words[4]), is_strict);
    if (!failed)
        puts("ok");
    return failed;
}
