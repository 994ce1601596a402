// Stands for the host's <sys/types.h>, which NVRTC does not have. 64-bit integers are long long, as in CUDA's headers.
#pragma once
typedef unsigned char u_char;
typedef unsigned short ushort, u_short;
typedef unsigned int uint, u_int;
typedef unsigned long ulong, u_long;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char u_int8_t;
typedef unsigned short u_int16_t;
typedef unsigned int u_int32_t;
typedef unsigned long long u_int64_t;
typedef long quad_t, ssize_t, off_t;
typedef unsigned long u_quad_t;
typedef int pid_t;
