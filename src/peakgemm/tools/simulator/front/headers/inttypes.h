// Stands for the host's <inttypes.h>, which NVRTC does not have.
#pragma once
#include <stdint.h>
