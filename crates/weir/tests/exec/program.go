// A program of Go's own runtime, without the C library: HTTP over TCP, and an echo over UDP.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if os.Args[1] == "server" {
		http.HandleFunc("/", func(to http.ResponseWriter, from *http.Request) {
			io.Copy(to, from.Body)
		})
		fmt.Println(http.ListenAndServe(os.Args[2], nil))
		return
	}
	at := os.Args[2]
	var group sync.WaitGroup
	for client := 0; client < 20; client++ {
		group.Go(func() {
			body := strings.Repeat("weir", 100000)
			stream, err := net.DialTimeout("tcp", at, 20*time.Second)
			if err != nil {
				fmt.Println(err)
				return
			}
			go func() {
				io.WriteString(stream, body)
				stream.(*net.TCPConn).CloseWrite()
			}()
			got, err := io.ReadAll(stream)
			if err != nil || string(got) != body {
				fmt.Println("differs", len(got), err)
			}
			stream.Close()
		})
	}
	group.Wait()
	datagrams, err := net.Dial("udp", at)
	if err != nil {
		fmt.Println(err)
		return
	}
	room := make([]byte, 100)
	for try := 0; try < 100; try++ {
		datagrams.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		datagrams.Write([]byte("datagram"))
		if count, err := datagrams.Read(room); err == nil {
			fmt.Println(string(room[:count]), datagrams.RemoteAddr())
			break
		}
	}
	_, err = net.DialTimeout("tcp", os.Args[3], 20*time.Second)
	fmt.Println(errors.Is(err, syscall.ECONNREFUSED))
}
