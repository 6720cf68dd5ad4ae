/*
 * The calls of the exerciser that Rust makes only in unsafe code: mappings, and the control calls of a mount.
 *
 * Started with the names of the files. Reads a request after the other from the standard input, and answers each on the
 * standard output. extant.h holds the structures of docs/formats/ioctl.md, as they are printed there.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "extant.h"

#define EXTANT_IOC_FALLOCATE _IOWR(0xE4, 1, struct extant_fallocate)
#define EXTANT_IOC_EXTENTS _IOWR(0xE4, 2, struct extant_extents)

enum { READ = 1, WRITE, KEEP, DROP, FALLOCATE, EXTENTS };

/* Bits of the mode of READ and WRITE. */
enum { SYNC = 1, ASYNC = 2, CLOSE_FIRST = 4 };

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

static int open_file(uint32_t number) {
    int file = open(names[number], O_RDWR);
    must(file >= 0, "open");
    return file;
}

static char *map(int file, uint64_t length) {
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
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
        file = open_file(number);
        memory = map(file, end);
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
    while (fread(&request, sizeof request, 1, stdin) == 1) {
        char *data = NULL;
        if (request.kind == READ || request.kind == WRITE) {
            data = malloc(request.length);
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
    return 0;
}
