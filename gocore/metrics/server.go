package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
)

const (
	// maxClients bounds the connections of those that ask; further ones are closed at once.
	maxClients = 64
	// clientTime bounds how long a client may take to ask, and to read.
	clientTime = 10 * time.Second
	// ports is how many ports a node tries, as others of its host have the first.
	ports = 1000
)

// Source is what a Server presents.
type Source struct {
	Node    func() Node
	Latency Latency                       // of a worker
	Cluster func() (cluster.Status, bool) // of the scheduler; else nil
	Address func() string                 // where others find this server, host:port
}

// Server answers Prometheus over HTTP.
type Server struct {
	listener *net.TCPListener
	http     *http.Server
	clients  atomic.Int32
}

// Serve serves the metrics of a node at host:port, 0 for any free port. With first set, another port is an error, else the first
// free one from port on serves: nodes of one host share the setting.
func Serve(host string, port int, first bool, s Source) (*Server, error) {
	listener, err := listen(host, port, first)
	if err != nil {
		return nil, fault.New(fault.Config, "cannot serve metrics at %s:%d: %v. Choose another FPTPS_METRICS_PORT or FPTPS_METRICS_HOST", host, port, err)
	}
	v := &Server{listener: listener.(*net.TCPListener)}
	v.http = &http.Server{
		Handler: handler(s), ConnState: v.count, ErrorLog: log.New(io.Discard, "", 0), // it would log what strangers do
		ReadTimeout: clientTime, WriteTimeout: clientTime, IdleTimeout: 5 * time.Minute, MaxHeaderBytes: 8 << 10,
	}
	go fault.Catch(func() error { return v.http.Serve(listener) })
	return v, nil
}

// listen opens a port.
func listen(host string, port int, first bool) (l net.Listener, err error) {
	for tries := range ports {
		l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port+tries)))
		if first || port == 0 || port+tries == 65535 || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return l, err
}

// count closes connections beyond maxClients.
func (v *Server) count(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if v.clients.Add(1) > maxClients {
			c.Close()
		}
	case http.StateClosed:
		v.clients.Add(-1)
	}
}

// Address is where it listens: host and port.
func (v *Server) Address() *net.TCPAddr { return v.listener.Addr().(*net.TCPAddr) }

// Socket is the listener's file descriptor, for a forked child to close.
func (v *Server) Socket() (fd int, err error) {
	raw, err := v.listener.SyscallConn()
	if err == nil {
		err = raw.Control(func(n uintptr) { fd = int(n) })
	}
	return fd, err
}

// Close ends it at once.
func (v *Server) Close() {
	v.http.Close()
}

// handler answers /metrics, and on the scheduler /targets.
func handler(s Source) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(nodeCollector{s.Node}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if s.Latency.HistogramVec != nil {
		registry.MustRegister(s.Latency)
	}
	mux := http.NewServeMux()
	if s.Cluster != nil {
		registry.MustRegister(clusterCollector{s.Cluster})
		mux.HandleFunc("GET /targets", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			status, _ := s.Cluster()
			json.NewEncoder(w).Encode(targets(s.Address(), status))
		})
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: clientTime / 2}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "fptps serves its metrics at /metrics") })
	return mux
}

// targetGroup is an element of what Prometheus' http_sd_config reads.
type targetGroup struct {
	Targets []string `json:"targets"`
}

// targets lists where the nodes serve their metrics, the scheduler first.
func targets(scheduler string, s cluster.Status) []targetGroup {
	all := []string{scheduler}
	for _, n := range s.Nodes {
		if n.Metrics != "" {
			all = append(all, n.Metrics)
		}
	}
	return []targetGroup{{all}}
}
