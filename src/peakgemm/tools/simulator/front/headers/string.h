// Stands for the host's <string.h>, which NVRTC has not: what device code uses of it is built in or below.
#pragma once
