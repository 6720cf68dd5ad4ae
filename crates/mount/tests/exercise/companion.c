/*
 * The calls of the exerciser that Rust makes only in unsafe code: mappings, asynchronous I/O, and control calls.
 *
 * A process beside it reads the files through the kernel's cache all the time, so that the cache has pages that other ways of access change.
 *
 * Started with the names of the files. Reads a request after the other from the standard input, and answers each on the
 * standard output. extant.h holds the structures of docs/formats/ioctl.md, as they are printed there.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "extant.h"

_Static_assert(sizeof(struct extant_statistics) == 448, "docs/formats/ioctl.md");
_Static_assert(sizeof(struct extant_allocator) == 16, "docs/formats/ioctl.md");

#define EXTANT_IOC_FALLOCATE _IOWR(0xE4, 1, struct extant_fallocate)
#define EXTANT_IOC_EXTENTS _IOWR(0xE4, 2, struct extant_extents)

enum { READ = 1, WRITE, KEEP, DROP, FALLOCATE, EXTENTS, SUBMIT_READ, SUBMIT_WRITE, SET_SYNC };

/* Bits of the mode of READ and WRITE. */
enum { SYNC = 1, ASYNC = 2, CLOSE_FIRST = 4, DIRECT = 8 };

enum { PARTS_MAX = 32 };

struct request {
    uint32_t kind;
    uint32_t file;
    uint32_t mode;
    uint32_t reserved;
    uint64_t offset;
    uint64_t length;
};

struct answer {
    uint32_t error;
    uint32_t length; /* of what follows */
};

static char **names;
static char *kept[16];
static uint64_t kept_length[16];

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static void answer(int error, const void *data, size_t length) {
    struct answer head = {error, length};
    must(fwrite(&head, sizeof head, 1, stdout) == 1, "answer");
    must(length == 0 || fwrite(data, length, 1, stdout) == 1, "answer");
    must(fflush(stdout) == 0, "answer");
}

static int open_with(uint32_t number, int flags) {
    int file = open(names[number], O_RDWR | flags);
    must(file >= 0, "open");
    return file;
}

static int open_file(uint32_t number) {
    return open_with(number, 0);
}

static char *map(int file, uint64_t length) {
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    /* Before Linux 6.6 a file that is open past the cache cannot be mapped. */
    if (memory == MAP_FAILED && errno == ENODEV && fcntl(file, F_GETFL) & O_DIRECT)
        return NULL;
    must(memory != MAP_FAILED, "mmap");
    return memory;
}

static void sync_mapping(char *memory, uint64_t length, uint32_t mode) {
    if (mode & (SYNC | ASYNC))
        must(msync(memory, length, mode & SYNC ? MS_SYNC : MS_ASYNC) == 0, "msync");
}

static void move_data(const struct request *request, char *data) {
    uint32_t number = request->file;
    uint64_t end = request->offset + request->length;
    int is_kept = kept[number] && end <= kept_length[number];
    int file = -1;
    char *memory = kept[number];
    if (!is_kept) {
        file = open_with(number, request->mode & DIRECT ? O_DIRECT : 0);
        memory = map(file, end);
        if (memory == NULL) {
            close(file);
            file = open_file(number);
            memory = map(file, end);
        }
        if (request->mode & CLOSE_FIRST) {
            close(file);
            file = -1;
        }
    }
    if (request->kind == READ)
        memcpy(data, memory + request->offset, request->length);
    else
        memcpy(memory + request->offset, data, request->length);
    sync_mapping(memory, end, request->mode);
    if (!is_kept) {
        must(munmap(memory, end) == 0, "munmap");
        if (file >= 0)
            must(close(file) == 0, "close");
    }
}

static void drop(uint32_t number) {
    if (kept[number])
        must(munmap(kept[number], kept_length[number]) == 0, "munmap");
    kept[number] = NULL;
}

static void keep(const struct request *request) {
    drop(request->file);
    int file = open_file(request->file);
    kept[request->file] = map(file, request->length);
    kept_length[request->file] = request->length;
    close(file);
}

/* Reads or writes in parts that are all under way at once, past the cache. Returns how many bytes there were. */
static size_t submit(const struct request *request, char *data) {
    static aio_context_t context;
    struct iocb calls[PARTS_MAX], *list[PARTS_MAX];
    struct io_event events[PARTS_MAX];
    struct timespec limit = {30, 0};
    uint64_t part = (request->length + request->mode - 1) / request->mode, at = 0;
    int file = open_with(request->file, O_DIRECT), count = 0;
    size_t done = 0;
    if (context == 0)
        must(syscall(SYS_io_setup, PARTS_MAX, &context) == 0, "io_setup");
    for (; at < request->length; at += part, count++) {
        uint64_t length = request->length - at < part ? request->length - at : part;
        calls[count] = (struct iocb){.aio_fildes = file, .aio_buf = (uintptr_t)(data + at), .aio_nbytes = length,
            .aio_offset = request->offset + at,
            .aio_lio_opcode = request->kind == SUBMIT_READ ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE};
        list[count] = &calls[count];
    }
    must(syscall(SYS_io_submit, context, count, list) == count, "io_submit");
    must(syscall(SYS_io_getevents, context, count, count, events, &limit) == count, "io_getevents");
    for (int i = 0; i < count; i++) {
        must(events[i].res >= 0, "asynchronous call");
        done += events[i].res;
    }
    must(close(file) == 0, "close");
    return done;
}

static void set_sync(uint32_t number, int is_set) {
    int file = open_file(number), flags;
    must(ioctl(file, FS_IOC_GETFLAGS, &flags) == 0, "get flags");
    flags = is_set ? flags | FS_SYNC_FL : flags & ~FS_SYNC_FL;
    must(ioctl(file, FS_IOC_SETFLAGS, &flags) == 0, "set flags");
    must(close(file) == 0, "close");
}

/* Reads what there is of all files, through the cache. */
static pid_t start_reader(int count) {
    static char data[1 << 16];
    pid_t parent = getpid(), reader = fork();
    must(reader >= 0, "fork");
    if (reader > 0)
        return reader;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent) {
        for (int i = 0; i < count; i++) {
            int file = open(names[i], O_RDONLY);
            while (file >= 0 && read(file, data, sizeof data) > 0)
                ;
            close(file);
        }
        usleep(2000);
    }
    _exit(0);
}

/* The call, and what a caller does afterwards. */
static int change_space(const struct request *request) {
    struct extant_fallocate call = {.mode = request->mode, .offset = request->offset, .length = request->length};
    struct stat found;
    int file = open_file(request->file);
    int error = 0;
    if (ioctl(file, EXTANT_IOC_FALLOCATE, &call) != 0)
        error = errno;
    else {
        must(fstat(file, &found) == 0, "fstat");
        if ((uint64_t)found.st_size != call.size)
            must(ftruncate(file, call.size) == 0, "ftruncate");
    }
    must(close(file) == 0, "close");
    return error;
}

/* The whole map: pages of it in one piece. */
static void tell_extents(uint32_t number) {
    static struct extant_extents page;
    struct extant_extent *all = NULL;
    size_t count = 0;
    int file = open_file(number);
    page.offset = 0;
    page.length = INT64_MAX;
    while (page.length > 0) {
        must(ioctl(file, EXTANT_IOC_EXTENTS, &page) == 0, "extents");
        all = realloc(all, (count + page.count) * sizeof *all + 1);
        must(all != NULL, "realloc");
        memcpy(all + count, page.extents, page.count * sizeof *all);
        count += page.count;
    }
    must(close(file) == 0, "close");
    answer(0, all, count * sizeof *all);
    free(all);
}

int main(int count, char **arguments) {
    struct request request;
    names = arguments + 1;
    must(count <= 16, "too many files");
    pid_t reader = start_reader(count - 1);
    while (fread(&request, sizeof request, 1, stdin) == 1) {
        char *data = NULL;
        if (request.kind == READ || request.kind == WRITE || request.kind == SUBMIT_READ || request.kind == SUBMIT_WRITE) {
            data = malloc(request.length + 1);
            must(data != NULL, "malloc");
        }
        switch (request.kind) {
        case READ:
            move_data(&request, data);
            answer(0, data, request.length);
            break;
        case WRITE:
            must(fread(data, request.length, 1, stdin) == 1, "request");
            move_data(&request, data);
            answer(0, NULL, 0);
            break;
        case SUBMIT_READ:
            answer(0, data, submit(&request, data));
            break;
        case SUBMIT_WRITE:
            must(fread(data, request.length, 1, stdin) == 1, "request");
            must(submit(&request, data) == request.length, "whole write");
            answer(0, NULL, 0);
            break;
        case SET_SYNC:
            set_sync(request.file, request.mode);
            answer(0, NULL, 0);
            break;
        case KEEP:
            keep(&request);
            answer(0, NULL, 0);
            break;
        case DROP:
            drop(request.file);
            answer(0, NULL, 0);
            break;
        case FALLOCATE:
            answer(change_space(&request), NULL, 0);
            break;
        case EXTENTS:
            tell_extents(request.file);
            break;
        }
        free(data);
    }
    kill(reader, SIGKILL);
    waitpid(reader, NULL, 0);
    return 0;
}
