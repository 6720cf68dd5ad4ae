/* What the test programs share. */

#ifndef CHECK_H
#define CHECK_H

#include <extant.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* `call` puts its error into `error`. */
#define FAILS(call, wanted, number)                                                                                    \
    do {                                                                                                               \
        extant_error *error = NULL;                                                                                    \
        extant_status status = (call);                                                                                 \
        fails(__LINE__, status, wanted, error, number);                                                                \
    } while (0)

#define SUCCEEDS(call)                                                                                                 \
    do {                                                                                                               \
        extant_error *error = (extant_error *)1;                                                                       \
        extant_status status = (call);                                                                                 \
        if (status != EXTANT_STATUS_OK || error != NULL) {                                                             \
            fprintf(stderr, "line %d: status %d: %s\n", __LINE__, (int)status, extant_error_message(error));           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void fails(int line, extant_status status, extant_status wanted, extant_error *error, int number)
{
    if (error == NULL || status != wanted || extant_error_errno(error) != number) {
        fprintf(stderr, "line %d: status %d, errno %d: %s\n", line, (int)status,
                error == NULL ? 0 : extant_error_errno(error), error == NULL ? "" : extant_error_message(error));
        exit(1);
    }
    const char *message = extant_error_message(error);
    /* Options and commands are those of the program extant. */
    if (strlen(message) == 0 || strstr(message, "--") != NULL || strstr(message, "extant ") != NULL) {
        fprintf(stderr, "line %d: %s\n", line, message);
        exit(1);
    }
    extant_error_free(error);
}

#endif
