// Package engine is the process that speaks BGP with one router, for the speaker that starts it. It runs one GoBGP
// server with one peer. It only dials and does not listen, so it needs no privilege. It ends with its session.
//
// Orders come in on a connection to the speaker: first the settings of the peer, then changes of its routes. Each order
// is answered by a notice with the state of the session.
//
//	lb.Order   ──► execute ──► GoBGP ──► router
//	lb.Notice  ◄── session ◄── GoBGP's state and log
//
// Messages of routers are parsed in this package only, by GoBGP. It is v4, because v3 lacks fixes for several remote
// crashes. A message that crashes GoBGP ends this process, and so identifies the peer. It affects no other session.
//
// The package decides nothing about addresses and peers. It reads addresses from the kernel and writes no route to it.
package engine

import (
	"encoding/gob"
	"errors"
	"os"
	"runtime/debug"
	"syscall"
	"unsafe"

	"github.com/holdfast-lb/holdfast/internal/child"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/sys/unix"
)

// Serve holds the session that the speaker orders. The speaker has started this process. Serve returns nil when the
// speaker orders it to leave or the session is lost.
//
// It returns an error when the speaker has ended or did not start this process. Then the caller should exit at once:
// the kernel closes the connection without a NOTIFICATION, and a router with graceful restart keeps the routes (RFC
// 4724 section 4.2). It also returns an error if GoBGP refuses a request: the next engine starts with everything again.
func Serve() error {
	conn, err := child.Parent()
	if err != nil {
		return err
	}

	confined := confine()
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	orders := make(chan lb.Order)
	go func() {
		defer close(orders)
		for {
			var o lb.Order
			if in.Decode(&o) != nil {
				return
			}

			orders <- o
		}
	}()

	o, open := <-orders
	if o.Peer == nil {
		return errors.New("the first order has no peer")
	}

	e, err := start(*o.Peer)
	if err != nil {
		return err
	}

	if confined != nil {
		e.warning = "it is less confined than it should be: " + confined.Error()
	}

	for open {
		if o.Leave != nil {
			return e.leave(*o.Leave)
		}

		notice, lost, err := e.execute(o)
		if err != nil {
			return err
		}

		_ = out.Encode(notice) // if the speaker has ended, orders is closed
		if lost {
			return nil
		}

		select {
		case o, open = <-orders:
		case <-e.notes.wake:
			o = lb.Order{}
		}
	}

	return errors.New("the speaker is gone")
}

const (
	// gcPercent is the growth of the heap that starts a garbage collection. It is low, because there is an engine for
	// each peer and it has little to do.
	gcPercent = 50
	// maxMemory limits the memory of an engine, in bytes. It is far more than maxPrefixes routes need. An engine that
	// grows beyond it dies, before it exhausts the memory of the container or of the node.
	maxMemory = 512 << 20
)

// confine drops all capabilities and limits the memory of this process. An error is no reason not to serve.
func confine() error {
	debug.SetGCPercent(gcPercent)
	limit := unix.Rlimit{Cur: maxMemory, Max: maxMemory}
	return errors.Join(dropCapabilities(), os.NewSyscallError("setrlimit", unix.Setrlimit(unix.RLIMIT_DATA, &limit)))
}

// dropCapabilities drops all capabilities: dialling needs none. It has no effect in a program with cgo, which only
// tests use.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(
		unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&none[0])),
		0,
	)
	if errno == 0 || errno == unix.ENOTSUP {
		return nil
	}

	return os.NewSyscallError("capset", errno)
}
