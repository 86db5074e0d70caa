// A checksum of the sources that the library was built from, by setup.py; 0 if it was built by hand.
#include <cstdint>

#ifndef SMOE_SOURCES
#define SMOE_SOURCES 0
#endif

extern "C" uint32_t smoe_sources() { return SMOE_SOURCES; }
