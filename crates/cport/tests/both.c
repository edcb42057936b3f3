/* A program that uses ports and taps: each library has messages of its own. */
#include "weir_port.h"
#include "weir_tap.h"

#include <stdio.h>

int main(void)
{
    if (weir_port_wait(NULL, 0) != -1 || weir_push(NULL) != -1)
        return 1;
    printf("%s\n%s\n", weir_port_error(), weir_error());
    return 0;
}
