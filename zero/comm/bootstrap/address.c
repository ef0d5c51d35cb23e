// address.c: the address of a server, as users write it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "zero/comm/bootstrap/bootstrap_internal.h"

int zero_bootstrap_split_address(zero_bootstrap *b, const char *server, char *host, size_t host_bytes, char *port,
                                 size_t port_bytes) {
    const char *begin = server, *end = server + strlen(server), *colon = strrchr(server, ':');
    snprintf(port, port_bytes, "%d", ZERO_BOOTSTRAP_PORT);
    if (*server == '[' && (end = strchr(server, ']'))) {
        begin++;
        colon = end[1] == ':' ? end + 1 : NULL;
        if (end[1] && !colon) end = begin;  // refused below
    } else if (colon && strchr(server, ':') == colon) {
        end = colon;
    } else {
        colon = NULL;
    }
    char *rest = "";
    const long number = colon ? strtol(colon + 1, &rest, 10) : ZERO_BOOTSTRAP_PORT;
    if (end == NULL || end <= begin || (size_t)(end - begin) >= host_bytes || *rest || number < 1 || number > 65535)
        return zero_bootstrap_fail(b, ZERO_ERR_ARG,
                                   "\"%.200s\" is no address of a server: write it as name, name:port, 10.0.0.1:port "
                                   "or [::1]:port, with a port from 1 to 65535 (server)",
                                   server);
    snprintf(host, host_bytes, "%.*s", (int)(end - begin), begin);
    if (colon) snprintf(port, port_bytes, "%ld", number);
    return ZERO_OK;
}
