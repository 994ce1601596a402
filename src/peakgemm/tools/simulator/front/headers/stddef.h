// Stands for the host's <stddef.h>, which NVRTC does not have: what device code uses of it is built in or below.
#pragma once
typedef decltype(nullptr) nullptr_t;
namespace std {
using ::nullptr_t;
using ::ptrdiff_t;
using ::size_t;
}
