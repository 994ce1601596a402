// Stands for the host's <stddef.h>, which NVRTC has not: what device code uses of it is built in or below.
#pragma once
typedef decltype(nullptr) nullptr_t;
