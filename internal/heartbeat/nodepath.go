package heartbeat

import (
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// setNodePath replaces the link of this node's address; nil for none.
func (t *beatThread) setNodePath(l *linkPath) {
	if t.nodePath != nil {
		t.sockets.watch(nodePathFile, t.nodePath.fd, unix.EPOLLIN, false)
		go rt.CloseFile(t.nodePath.fd) // the thread does not wait for it
	}

	t.nodePath = l
	if l != nil {
		l.detector = t.detector
		setFrameFilter(l.fd, t.frameSeals)
	}
}

// stepNodePath reads the frames on the link of this node's address. At rest these are hellos, which can wait.
func (t *beatThread) stepNodePath() {
	l := t.nodePath
	if l == nil {
		return
	}

	isRead := t.beats%readEvery == 0 || t.sockets.found[nodePathFile] || t.detector.UsesFrames()
	if isRead {
		t.receiveFrames(l)
	}
	at := boottime()
	if at >= l.helloAt {
		t.sendHello(at, l)
	}
}

// queueAsFrame adds a packet that went as a datagram to the frames to send, if its receiver needs it so.
func (t *beatThread) queueAsFrame(p *detect.Packet) {
	l := t.nodePath
	if l == nil {
		return
	}

	end := l.ends[p.To]
	if end != nil && t.detector.AsFrame(p) {
		t.frames.fd = l.fd
		t.queueFrame(l, end.linkEnd, p)
	}
}
