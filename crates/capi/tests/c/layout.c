/*
 * The structures, as programs have been built with them, and the functions that fill options. A number here is never changed;
 * a field that is added gets a line, and its structure another size.
 */

#include "check.h"

#include <stddef.h>

#define BYTES(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type)
#define FIELD(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), "place of " #field " in " #type)

BYTES(extant_create_options, 56);
FIELD(extant_create_options, struct_size, 0);
FIELD(extant_create_options, preallocation, 8);
FIELD(extant_create_options, pace, 12);
FIELD(extant_create_options, rate_bytes, 16);
FIELD(extant_create_options, allocation_bytes, 24);
FIELD(extant_create_options, mode, 32);
FIELD(extant_create_options, replace, 36);
FIELD(extant_create_options, nocow, 40);
FIELD(extant_create_options, keep_partial, 44);
FIELD(extant_create_options, background_basis_points, 48);
FIELD(extant_create_options, reserved, 52);

BYTES(extant_progress, 24);
FIELD(extant_progress, step, 0);
FIELD(extant_progress, reserved, 4);
FIELD(extant_progress, done_bytes, 8);
FIELD(extant_progress, total_bytes, 16);

BYTES(extant_control, 24);
FIELD(extant_control, progress, 0);
FIELD(extant_control, user, 8);
FIELD(extant_control, cancel, 16);

BYTES(extant_create_report, 32);
FIELD(extant_create_report, allocation_bytes, 0);
FIELD(extant_create_report, written_bytes, 8);
FIELD(extant_create_report, resumed_bytes, 16);
FIELD(extant_create_report, extents, 24);

BYTES(extant_image_options, 104);
FIELD(extant_image_options, struct_size, 0);
FIELD(extant_image_options, format, 8);
FIELD(extant_image_options, preallocation, 12);
FIELD(extant_image_options, pace, 16);
FIELD(extant_image_options, background_basis_points, 20);
FIELD(extant_image_options, rate_bytes, 24);
FIELD(extant_image_options, allocation_bytes, 32);
FIELD(extant_image_options, mode, 40);
FIELD(extant_image_options, replace, 44);
FIELD(extant_image_options, nocow, 48);
FIELD(extant_image_options, keep_partial, 52);
FIELD(extant_image_options, cluster_bytes, 56);
FIELD(extant_image_options, refcount_bits, 60);
FIELD(extant_image_options, version, 64);
FIELD(extant_image_options, lazy_refcounts, 68);
FIELD(extant_image_options, compression, 72);
FIELD(extant_image_options, backing_format, 76);
FIELD(extant_image_options, backing_file, 80);
FIELD(extant_image_options, data_file, 88);
FIELD(extant_image_options, data_file_raw, 96);
FIELD(extant_image_options, backing_unchecked, 100);

BYTES(extant_image_report, 48);
FIELD(extant_image_report, struct_size, 0);
FIELD(extant_image_report, capacity_bytes, 8);
FIELD(extant_image_report, size_bytes, 16);
FIELD(extant_image_report, written_bytes, 24);
FIELD(extant_image_report, resumed_bytes, 32);
FIELD(extant_image_report, extents, 40);

BYTES(extant_image_source, 32);
FIELD(extant_image_source, struct_size, 0);
FIELD(extant_image_source, format, 8);
FIELD(extant_image_source, open_named_files, 12);
FIELD(extant_image_source, threads, 16);
FIELD(extant_image_source, reserved, 20);
FIELD(extant_image_source, capacity_bytes, 24);

BYTES(extant_image_info, 8336);
FIELD(extant_image_info, struct_size, 0);
FIELD(extant_image_info, format, 8);
FIELD(extant_image_info, preallocation, 12);
FIELD(extant_image_info, capacity_bytes, 16);
FIELD(extant_image_info, size_bytes, 24);
FIELD(extant_image_info, allocated_bytes, 32);
FIELD(extant_image_info, hole_bytes, 40);
FIELD(extant_image_info, unwritten_bytes, 48);
FIELD(extant_image_info, written_bytes, 56);
FIELD(extant_image_info, mapped_bytes, 64);
FIELD(extant_image_info, cluster_bytes, 72);
FIELD(extant_image_info, refcount_bits, 80);
FIELD(extant_image_info, version, 84);
FIELD(extant_image_info, compression, 88);
FIELD(extant_image_info, lazy_refcounts, 92);
FIELD(extant_image_info, is_dirty, 96);
FIELD(extant_image_info, is_corrupt, 100);
FIELD(extant_image_info, snapshots, 104);
FIELD(extant_image_info, data_file_raw, 108);
FIELD(extant_image_info, backing_format, 112);
FIELD(extant_image_info, backing_file, 144);
FIELD(extant_image_info, data_file, 4240);

BYTES(extant_image_materialize_options, 32);
FIELD(extant_image_materialize_options, struct_size, 0);
FIELD(extant_image_materialize_options, format, 8);
FIELD(extant_image_materialize_options, open_named_files, 12);
FIELD(extant_image_materialize_options, pace, 16);
FIELD(extant_image_materialize_options, background_basis_points, 20);
FIELD(extant_image_materialize_options, rate_bytes, 24);

BYTES(extant_image_materialize_report, 32);
FIELD(extant_image_materialize_report, struct_size, 0);
FIELD(extant_image_materialize_report, capacity_bytes, 8);
FIELD(extant_image_materialize_report, already_written_bytes, 16);
FIELD(extant_image_materialize_report, size_bytes, 24);

BYTES(extant_job_info, 1360);
FIELD(extant_job_info, struct_size, 0);
FIELD(extant_job_info, id, 8);
FIELD(extant_job_info, state, 16);
FIELD(extant_job_info, operation, 20);
FIELD(extant_job_info, progress, 24);
FIELD(extant_job_info, created, 48);
FIELD(extant_job_info, ended, 56);
FIELD(extant_job_info, status, 64);
FIELD(extant_job_info, error_number, 68);
FIELD(extant_job_info, volume, 72);
FIELD(extant_job_info, message, 328);

BYTES(extant_extent, 32);
FIELD(extant_extent, logical, 0);
FIELD(extant_extent, length, 8);
FIELD(extant_extent, physical, 16);
FIELD(extant_extent, state, 24);
FIELD(extant_extent, flags, 28);

BYTES(extant_materialize_options, 48);
FIELD(extant_materialize_options, struct_size, 0);
FIELD(extant_materialize_options, offset, 8);
FIELD(extant_materialize_options, length, 16);
FIELD(extant_materialize_options, pace, 24);
FIELD(extant_materialize_options, shared_access, 28);
FIELD(extant_materialize_options, rate_bytes, 32);
FIELD(extant_materialize_options, unshare, 40);
FIELD(extant_materialize_options, background_basis_points, 44);

BYTES(extant_materialize_report, 24);
FIELD(extant_materialize_report, already_written_bytes, 0);
FIELD(extant_materialize_report, zeroed_bytes, 8);
FIELD(extant_materialize_report, unshared_bytes, 16);

BYTES(extant_pool_options, 64);
FIELD(extant_pool_options, struct_size, 0);
FIELD(extant_pool_options, kind, 8);
FIELD(extant_pool_options, preallocation, 12);
FIELD(extant_pool_options, total_bytes, 16);
FIELD(extant_pool_options, rate_bytes, 24);
FIELD(extant_pool_options, overcommit, 32);
FIELD(extant_pool_options, jobs_max, 40);
FIELD(extant_pool_options, adopt, 44);
FIELD(extant_pool_options, directory, 48);
FIELD(extant_pool_options, state, 56);

BYTES(extant_pool_entry, 5400);
FIELD(extant_pool_entry, struct_size, 0);
FIELD(extant_pool_entry, kind, 8);
FIELD(extant_pool_entry, status, 12);
FIELD(extant_pool_entry, name, 16);
FIELD(extant_pool_entry, path, 272);
FIELD(extant_pool_entry, message, 4368);

BYTES(extant_pool_info, 4424);
FIELD(extant_pool_info, struct_size, 0);
FIELD(extant_pool_info, kind, 8);
FIELD(extant_pool_info, jobs, 12);
FIELD(extant_pool_info, total_bytes, 16);
FIELD(extant_pool_info, allocated_bytes, 24);
FIELD(extant_pool_info, free_bytes, 32);
FIELD(extant_pool_info, promised_bytes, 40);
FIELD(extant_pool_info, reserved_bytes, 48);
FIELD(extant_pool_info, available_bytes, 56);
FIELD(extant_pool_info, volumes, 64);
FIELD(extant_pool_info, name, 72);
FIELD(extant_pool_info, path, 328);

BYTES(extant_probe_report, 256);
FIELD(extant_probe_report, way, 0);
FIELD(extant_probe_report, has_reflink, 4);
FIELD(extant_probe_report, block_bytes, 8);
FIELD(extant_probe_report, available_bytes, 16);
FIELD(extant_probe_report, filesystem, 24);
FIELD(extant_probe_report, reason, 56);

BYTES(extant_volume_entry, 288);
FIELD(extant_volume_entry, struct_size, 0);
FIELD(extant_volume_entry, format, 8);
FIELD(extant_volume_entry, reserved, 12);
FIELD(extant_volume_entry, capacity_bytes, 16);
FIELD(extant_volume_entry, allocated_bytes, 24);
FIELD(extant_volume_entry, name, 32);

BYTES(extant_volume_info, 4424);
FIELD(extant_volume_info, struct_size, 0);
FIELD(extant_volume_info, format, 8);
FIELD(extant_volume_info, preallocation, 12);
FIELD(extant_volume_info, capacity_bytes, 16);
FIELD(extant_volume_info, size_bytes, 24);
FIELD(extant_volume_info, allocated_bytes, 32);
FIELD(extant_volume_info, written_bytes, 40);
FIELD(extant_volume_info, extents, 48);
FIELD(extant_volume_info, may_run_out_of_space, 56);
FIELD(extant_volume_info, mode, 60);
FIELD(extant_volume_info, uid, 64);
FIELD(extant_volume_info, gid, 68);
FIELD(extant_volume_info, name, 72);
FIELD(extant_volume_info, path, 328);

BYTES(extant_volume_options, 88);
FIELD(extant_volume_options, struct_size, 0);
FIELD(extant_volume_options, priority, 8);
FIELD(extant_volume_options, pace, 12);
FIELD(extant_volume_options, rate_bytes, 16);
FIELD(extant_volume_options, background_basis_points, 24);
FIELD(extant_volume_options, mode, 28);
FIELD(extant_volume_options, preallocation, 32);
FIELD(extant_volume_options, shrink, 36);
FIELD(extant_volume_options, allocation_bytes, 40);
FIELD(extant_volume_options, format, 48);
FIELD(extant_volume_options, nocow, 52);
FIELD(extant_volume_options, verify_all, 56);
FIELD(extant_volume_options, clone_method, 60);
FIELD(extant_volume_options, unshare, 64);
FIELD(extant_volume_options, replace, 68);
FIELD(extant_volume_options, allow_backing, 72);
FIELD(extant_volume_options, reserved, 76);
FIELD(extant_volume_options, qcow2, 80);

/* What programs call that were built before the header had these functions inline. */
void first_extant_create_options_init(extant_create_options *) __asm__("extant_create_options_init");
void first_extant_materialize_options_init(extant_materialize_options *) __asm__("extant_materialize_options_init");
void first_extant_image_options_init(extant_image_options *) __asm__("extant_image_options_init");
void first_extant_image_source_init(extant_image_source *) __asm__("extant_image_source_init");
void first_extant_image_materialize_options_init(extant_image_materialize_options *) __asm__("extant_image_materialize_options_init");
void first_extant_pool_options_init(extant_pool_options *) __asm__("extant_pool_options_init");
void first_extant_volume_options_init(extant_volume_options *) __asm__("extant_volume_options_init");

/* The bytes behind `size` stay; those of a later version are zeros; the others are the defaults. */
#define INITIALIZES(type, init, size)                                                                                  \
    do {                                                                                                               \
        union {                                                                                                        \
            type options;                                                                                              \
            unsigned char bytes[512];                                                                                  \
        } given, whole;                                                                                                \
        init(&whole.options);                                                                                          \
        CHECK(whole.options.struct_size == sizeof(type));                                                              \
        const size_t sizes[] = {0, 7, 24, (size), (size) + 40};                                                        \
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {                                                    \
            memset(&given, 0xa5, sizeof given);                                                                        \
            init##_sized(&given.options, sizes[i]);                                                                    \
            size_t done = sizes[i] < sizeof(size_t) ? 0 : sizes[i];                                                    \
            size_t known = done < sizeof(type) ? done : sizeof(type);                                                  \
            CHECK(done == 0 || given.options.struct_size == done);                                                     \
            for (size_t at = sizeof(size_t); at < known; at++)                                                         \
                CHECK(given.bytes[at] == whole.bytes[at]);                                                             \
            for (size_t at = known; at < sizeof given; at++)                                                           \
                CHECK(given.bytes[at] == (at < done ? 0 : 0xa5));                                                      \
        }                                                                                                              \
        memset(&given, 0xa5, sizeof given);                                                                            \
        first_##init(&given.options);                                                                                  \
        CHECK(given.options.struct_size == (size));                                                                    \
        for (size_t at = (size); at < sizeof given; at++)                                                              \
            CHECK(given.bytes[at] == 0xa5);                                                                            \
        init##_sized(NULL, sizeof(type));                                                                              \
    } while (0)

int main(void)
{
    INITIALIZES(extant_create_options, extant_create_options_init, 56);
    INITIALIZES(extant_materialize_options, extant_materialize_options_init, 48);
    INITIALIZES(extant_image_options, extant_image_options_init, 104);
    INITIALIZES(extant_image_source, extant_image_source_init, 32);
    INITIALIZES(extant_image_materialize_options, extant_image_materialize_options_init, 32);
    INITIALIZES(extant_pool_options, extant_pool_options_init, 64);
    INITIALIZES(extant_volume_options, extant_volume_options_init, 88);
    (void)fails;
    return 0;
}
