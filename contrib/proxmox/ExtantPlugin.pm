package PVE::Storage::Custom::ExtantPlugin;

# Disks of virtual machines on Proxmox VE as volumes of an Extant pool, whose space is written
# before a disk has its name. README.md says how to install it, and its limits.
#
# Each method runs the command `extant` with --json. The storage has no state of its own.

use strict;
use warnings;

use JSON::PP qw(decode_json);

use PVE::Storage::Plugin;
use PVE::Tools qw(run_command);

use base qw(PVE::Storage::Plugin);

# Newest version of the storage API whose changes have been read.
my $API_MAX = 13;

my $VOLUME = qr/(?:vm|base)-(\d+)-[\w.-]+\.(raw|qcow2)/a;

sub api {
    my $version = PVE::Storage::APIVER();
    return $version < $API_MAX ? $version : $API_MAX;
}

sub type { return 'extant'; }

sub plugindata {
    return {
        content => [{ images => 1, none => 1 }, { images => 1 }],
        format => [{ raw => 1, qcow2 => 1 }, 'raw'],
    };
}

sub properties {
    return {
        'extant-rate' => {
            description => "Bytes per second that the creation and growth of disks write at most,"
                . " such as 200M.",
            type => 'string',
            pattern => '[0-9]+[KMG]?',
        },
    };
}

# `pool` and `preallocation` are properties of Proxmox VE.
sub options {
    return {
        pool => { fixed => 1 },
        preallocation => { optional => 1 },
        'extant-rate' => { optional => 1 },
        content => { optional => 1 },
        format => { optional => 1 },
        nodes => { optional => 1 },
        disable => { optional => 1 },
        shared => { optional => 1 },
    };
}

# Runs a command on the pool; returns its document, or undef where something does not exist and
# `may_be_missing`. Progress goes to the log of the task, in steps of 10%.
my sub extant {
    my ($scfg, $words, %options) = @_;

    my ($json, $error, $kind, $shown) = ('', '', '', 0);
    my $progress = sub {
        my ($line) = @_;
        my $event = eval { decode_json($line) };
        if (!$event) {
            $error .= "$line\n";
        } elsif ($event->{event} eq 'error') {
            $error .= "$event->{message}\n";
            $kind = $event->{kind};
        } elsif ($event->{event} eq 'progress' && $event->{phase} eq 'write') {
            my ($done, $total) = $event->@{qw(done_bytes total_bytes)};
            my $percent = $total ? int(10 * $done / $total) * 10 : 0;
            print "written: $percent% of $total bytes\n" if $percent > $shown;
            $shown = $percent if $percent > $shown;
        }
    };
    my $status = run_command(
        ['extant', $words->@*, '--json'],
        outfunc => sub { $json .= "$_[0]\n" },
        errfunc => $progress,
        noerr => 1,
        quiet => 1,
    );
    return undef if $options{may_be_missing} && $kind eq 'not-found';
    die $error || "extant $words->[0] $words->[1] failed (status $status)\n" if $status != 0;
    return decode_json($json);
}

my sub pool {
    my ($scfg) = @_;
    # Not an option of `extant`; also removes the taint of what was read from a file.
    my ($pool) = $scfg->{pool} =~ m/^([^-].*)$/ or die "illegal pool '$scfg->{pool}'\n";
    return $pool;
}

my sub number {
    my ($value) = @_;
    my ($number) = ($value // '') =~ m/^(\d+)$/a or die "no number in the output of extant\n";
    return int($number);
}

# How new space is made.
my sub space_options {
    my ($scfg) = @_;
    my @words = ('--progress', 'json');
    for my $option (['preallocation', '--preallocation'], ['extant-rate', '--rate']) {
        my ($value) = ($scfg->{ $option->[0] } // '') =~ m/^(\w+)$/a or next;
        push @words, $option->[1], $value;
    }
    return @words;
}

sub parse_volname {
    my ($class, $volname) = @_;

    my ($name, $vmid, $format) = $volname =~ m/^($VOLUME)$/
        or die "unable to parse volume name '$volname'\n";
    my $is_base = $name =~ m/^base-/ ? 1 : undef;
    return ('images', $name, $vmid, undef, undef, $is_base, $format);
}

sub activate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;

    my $info = extant($scfg, ['pool', 'info', pool($scfg)]);
    die "pool '$scfg->{pool}' is of kind $info->{kind}: its volumes are no files of this machine\n"
        if $info->{kind} ne 'dir';
    return 1;
}

sub deactivate_storage { return 1; }

sub status {
    my ($class, $storeid, $scfg, $cache) = @_;

    my $space = extant($scfg, ['pool', 'info', pool($scfg)])->{space};
    my ($total, $available) = map { number($_) } $space->@{qw(total_bytes available_bytes)};
    return ($total, $available, $total - $available, 1);
}

sub list_images {
    my ($class, $storeid, $scfg, $vmid, $vollist, $cache) = @_;

    my $wanted = $vollist && { map { $_ => 1 } $vollist->@* };
    my @images;
    for my $volume (extant($scfg, ['vol', 'list', pool($scfg)])->{volumes}->@*) {
        # Volumes with other names belong to others.
        my ($name, $owner, $format) = $volume->{name} =~ m/^($VOLUME)$/ or next;
        my $volid = "$storeid:$name";
        next if $wanted ? !$wanted->{$volid} : defined($vmid) && $owner ne $vmid;
        push @images, {
            volid => $volid,
            vmid => $owner,
            format => $format,
            size => number($volume->{capacity_bytes}),
            used => number($volume->{allocated_bytes}),
        };
    }
    return \@images;
}

# `size` is in KiB.
sub alloc_image {
    my ($class, $storeid, $scfg, $vmid, $fmt, $name, $size) = @_;

    $name //= $class->find_free_diskname($storeid, $scfg, $vmid, $fmt, 1);
    my (undef, $volume, $owner, undef, undef, undef, $format) = $class->parse_volname($name);
    die "illegal name '$name' for VM $vmid and format $fmt\n"
        if $owner ne $vmid || $format ne $fmt;
    my $capacity = number($size) . 'KiB';
    extant($scfg, ['vol', 'create', pool($scfg), $volume, $capacity, space_options($scfg)]);
    return $volume;
}

sub free_image {
    my ($class, $storeid, $scfg, $volname, $isBase, $format) = @_;

    my $volume = ($class->parse_volname($volname))[1];
    extant($scfg, ['vol', 'delete', pool($scfg), $volume], may_be_missing => 1)
        or warn "volume '$volname' does not exist\n";
    return undef;
}

sub path {
    my ($class, $scfg, $volname, $storeid, $snapname) = @_;

    die "snapshots are not supported\n" if defined($snapname);
    my ($vtype, $volume, $vmid) = $class->parse_volname($volname);
    my $path = extant($scfg, ['vol', 'info', pool($scfg), $volume])->{path};
    ($path) = $path =~ m/^(\/.+)$/ or die "the path of '$volname' is not absolute\n";
    return wantarray ? ($path, $vmid, $vtype) : $path;
}

sub filesystem_path {
    my ($class, $scfg, $volname, $snapname) = @_;
    return $class->path($scfg, $volname, undef, $snapname);
}

sub volume_size_info {
    my ($class, $scfg, $storeid, $volname, $timeout) = @_;

    my (undef, $volume, undef, undef, undef, undef, $format) = $class->parse_volname($volname);
    my $info = extant($scfg, ['vol', 'info', pool($scfg), $volume]);
    my $size = number($info->{capacity_bytes});
    return wantarray ? ($size, $format, number($info->{allocated_bytes}), undef) : $size;
}

# `size` is in bytes.
sub volume_resize {
    my ($class, $scfg, $storeid, $volname, $size, $running) = @_;

    # Then QEMU changes the file itself, and the new part is sparse.
    return 1 if $running;
    my $volume = ($class->parse_volname($volname))[1];
    extant($scfg, ['vol', 'resize', pool($scfg), $volume, number($size), space_options($scfg)]);
    return undef;
}

sub activate_volume { return 1; }

sub deactivate_volume { return 1; }

sub volume_has_feature {
    my ($class, $scfg, $feature, $storeid, $volname, $snapname, $running, $opts) = @_;

    return undef if defined($snapname);
    # New volumes read as zeros, so that a copy leaves zeros out.
    return $feature eq 'copy' || $feature eq 'sparseinit' ? 1 : undef;
}

sub volume_snapshot { die "snapshots are not supported\n"; }

sub volume_snapshot_rollback { die "snapshots are not supported\n"; }

sub volume_rollback_is_possible { die "snapshots are not supported\n"; }

sub volume_snapshot_delete { die "snapshots are not supported\n"; }

sub volume_snapshot_info { return {}; }

sub create_base { die "templates are not supported\n"; }

sub clone_image { die "linked clones are not supported\n"; }

sub rename_volume { die "volumes cannot be renamed\n"; }

1;
