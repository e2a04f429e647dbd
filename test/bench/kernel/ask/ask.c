/*
 * A pod that asks: one thread, one UDP socket, one question again and again. It does
 * so little itself that what a query costs the machine is the network's and the
 * server's share.
 *
 * ask ADDRESS PORT RATE WINDOW MILLISECONDS [FIRST] reads the packed question from its
 * standard input. With FIRST every query is for a new name: its first label, of eight letters,
 * is a number that counts from there. With a RATE it asks so often a second, evenly spaced, whether
 * answers come or not, and sleeps in between. Without, it asks and looks for answers
 * in turn until WINDOW queries are under way, and with neither it asks nothing: what the machine does meanwhile is what it
 * does anyhow.
 *
 * It writes a line of numbers: queries sent, answered, answered wrongly and skipped
 * because they were due while this process did not run, the length of an answer, the
 * nanoseconds that passed, those of this process, and the ticks of /proc/stat in which
 * all CPUs together had nothing to do, with the number of CPUs. The time that each
 * answer took follows, in nanoseconds, as 32 bits in the machine's order.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* What has no answer after so long is lost; less could be a busy machine. */
#define PATIENCE 500000000ull

/* The times that are kept: four seconds at half a million queries a second. */
#define MOST (2u << 20)

/* The first label of a name begins after the header and its length. */
#define LABEL 13

static unsigned char question[512], packet[65536];
static ssize_t question_length;
static uint64_t sent_at[65536]; /* by ID; 0 is not under way */
static uint32_t took[MOST];
static uint64_t sent, answered, wrong, skipped, under, kept;
static ssize_t answer_length;
static unsigned long fresh; /* the next number; 0 asks for one name */
static int fd;

static uint64_t clock_of(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint64_t now(void)
{
	return clock_of(CLOCK_MONOTONIC);
}

/* idle is the ticks in which CPUs had nothing to do, or were another machine's. */
static uint64_t idle(void)
{
	static char text[512];
	unsigned long long nothing, disk, stolen;
	int file = open("/proc/stat", O_RDONLY);
	ssize_t n = read(file, text, sizeof(text) - 1);

	close(file);
	if (n <= 0 || sscanf(text, "cpu %*u %*u %*u %llu %llu %*u %*u %llu", &nothing, &disk, &stolen) != 3) {
		fprintf(stderr, "ask: /proc/stat is not as expected\n");
		exit(1);
	}
	return nothing + disk + stolen;
}

/* ask_once sends a query; 0 if that is impossible now. */
static int ask_once(void)
{
	uint16_t id = (uint16_t)sent;

	question[0] = (unsigned char)(id >> 8);
	question[1] = (unsigned char)id;
	if (fresh) {
		char number[9];

		snprintf(number, sizeof(number), "%08lx", fresh++ & 0xffffffff);
		memcpy(question + LABEL, number, sizeof(number) - 1);
	}
	if (sent_at[id]) /* its answer is lost */
		under--;
	sent_at[id] = now();
	under++;
	sent++;
	if (send(fd, question, (size_t)question_length, 0) < 0) {
		sent_at[id] = 0;
		under--;
		return 0;
	}
	return 1;
}

/* take reads an answer; 0 if there is none. */
static int take(void)
{
	ssize_t n = recv(fd, packet, sizeof(packet), MSG_DONTWAIT);
	uint16_t id;
	uint64_t late;

	if (n < 0)
		return errno == ECONNREFUSED;
	id = (uint16_t)(packet[0] << 8 | packet[1]);
	if (n < 12 || !(packet[2] & 0x80) || !sent_at[id])
		return 1;
	late = now() - sent_at[id];
	sent_at[id] = 0;
	under--;
	if (packet[3] & 15) {
		wrong++;
		return 1;
	}
	answered++;
	answer_length = n;
	if (kept < MOST)
		took[kept++] = late < UINT32_MAX ? (uint32_t)late : UINT32_MAX;
	return 1;
}

/* sleep_until returns at the time, or when there is an answer, with 1. */
static int sleep_until(uint64_t at)
{
	uint64_t left = now();
	struct pollfd one = {.fd = fd, .events = POLLIN};
	struct timespec t;

	left = at > left ? at - left : 0;
	t.tv_sec = (time_t)(left / 1000000000ull);
	t.tv_nsec = (long)(left % 1000000000ull);
	return ppoll(&one, 1, &t, NULL) > 0;
}

static void steadily(uint64_t every, uint64_t end)
{
	uint64_t due = now() + every;

	while (due < end) {
		if (sleep_until(due)) {
			take();
			continue;
		}
		ask_once();
		for (due += every; due + every < now(); due += every)
			skipped++; /* not made up for: that would be a burst */
	}
}

static void saturating(uint64_t window, uint64_t end)
{
	while (now() < end) {
		int moved = under < window && ask_once();

		while (under && take())
			moved = 1;
		if (!moved && !sleep_until(now() + PATIENCE)) {
			memset(sent_at, 0, sizeof(sent_at)); /* all are lost */
			under = 0;
		}
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in server;
	uint64_t rate, window, length, start, spent, spare, elapsed, limit;

	if (argc != 6 && argc != 7) {
		fprintf(stderr, "usage: ask ADDRESS PORT RATE WINDOW MILLISECONDS [FIRST] < QUESTION\n");
		return 2;
	}
	rate = strtoull(argv[3], NULL, 10);
	window = strtoull(argv[4], NULL, 10);
	length = strtoull(argv[5], NULL, 10) * 1000000ull;
	question_length = read(0, question, sizeof(question));
	if (argc == 7)
		fresh = strtoul(argv[6], NULL, 10);
	memset(&server, 0, sizeof(server));
	server.sin_family = AF_INET;
	server.sin_port = htons((unsigned short)atoi(argv[2]));
	if (question_length < LABEL + 9 || inet_pton(AF_INET, argv[1], &server.sin_addr) != 1) {
		fprintf(stderr, "ask: no question, or no IPv4 address\n");
		return 2;
	}
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof(server)) < 0) {
		perror("ask: connecting");
		return 1;
	}
	/* Otherwise a sleep is up to 50 µs longer than asked for. */
	prctl(PR_SET_TIMERSLACK, 1);
	memset(took, 1, sizeof(took)); /* the pages are there before the clock runs */

	spare = idle();
	spent = clock_of(CLOCK_PROCESS_CPUTIME_ID);
	start = now();
	if (rate)
		steadily(1000000000ull / rate, start + length);
	else if (window)
		saturating(window, start + length);
	else
		sleep_until(start + length);
	for (limit = now() + PATIENCE; under && now() < limit;)
		if (sleep_until(limit))
			take();
	elapsed = now() - start;
	spent = clock_of(CLOCK_PROCESS_CPUTIME_ID) - spent;
	spare = idle() - spare;

	printf("%llu %llu %llu %llu %zd %llu %llu %llu %ld\n", (unsigned long long)sent, (unsigned long long)answered,
	       (unsigned long long)wrong, (unsigned long long)skipped, answer_length, (unsigned long long)elapsed,
	       (unsigned long long)spent, (unsigned long long)spare, sysconf(_SC_NPROCESSORS_ONLN));
	return fwrite(took, sizeof(took[0]), kept, stdout) == kept ? 0 : 1;
}
