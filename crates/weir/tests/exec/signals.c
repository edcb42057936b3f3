/* Handlers that interrupt calls on sockets: each must run with its mask and a context, whenever it
   runs. Arguments: an address and a transport port where bytes are echoed. */

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

static volatile sig_atomic_t ran, wrong;

static void handler(int signal, siginfo_t *about, void *context)
{
    sigset_t now;
    ran++;
    if (about == NULL || about->si_signo != signal)
        wrong |= 1;
    if (context == NULL || sigismember(&((ucontext_t *)context)->uc_sigmask, SIGKILL) != 0)
        wrong |= 2;
    if (sigprocmask(SIG_BLOCK, NULL, &now) != 0 || !sigismember(&now, signal) ||
        !sigismember(&now, SIGUSR1))
        wrong |= 4;
}

int main(int count, char **words)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    struct sockaddr_in peer = {.sin_family = AF_INET};
    char bytes[64] = {0};
    if (count != 3 || inet_pton(AF_INET, words[1], &peer.sin_addr) != 1)
        return 2;
    peer.sin_port = htons(atoi(words[2]));
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR1);
    sigaction(SIGALRM, &action, NULL);
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(stream, (struct sockaddr *)&peer, sizeof peer) != 0) {
        perror("connect");
        return 1;
    }
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < 100000 && ran < 400; round++) {
        if (send(stream, bytes, sizeof bytes, 0) != sizeof bytes ||
            recv(stream, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes) {
            perror("echo");
            return 1;
        }
    }
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%s %d\n", ran > 0 ? "ran" : "never", (int)wrong);
    return 0;
}
