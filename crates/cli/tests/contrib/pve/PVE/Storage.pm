package PVE::Storage;

# A stand-in for the tests.

use strict;
use warnings;

our $version = 13;

sub APIVER { return $version; }

1;
