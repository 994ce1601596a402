// Stands for the host's <stdio.h>, which NVRTC has not: what device code uses of it is built in or below.
#pragma once
