package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/fault"
	"fptps/gocore/transport"
	"fptps/gocore/wire"
)

// Setting is one environment variable of fptps.
type Setting struct {
	Name    string `json:"name"`
	Default string `json:"default"`
	Unit    string `json:"unit"` // "", "seconds", "bytes", ...
	Doc     string `json:"doc"`
	Secret  bool   `json:"secret"`

	parse func(c *Config, value string) error
}

// Config is a node's settings.
type Config struct {
	Role              cluster.Role
	RoleGiven         bool // the environment names the role
	Workers, Servers  int
	SchedulerHost     string // "" on a worker that runs alone
	SchedulerPort     int
	Host              string // "": the address of the route to the scheduler
	Port              int
	DataPort          int   // 0: any free one
	Share             int   // of the summing; cluster.Unset: the scheduler decides
	Rank              int   // requested rank; -1: any
	LinkRate          int64 // bit/s; -1: that of the network interface
	SharedMemory      transport.SharedMemory
	Schedule          transport.Schedule
	WholeSums         bool // all sums of a tensor are sent together
	Deterministic     bool // see kv.WorkerConfig
	Secret            string
	LogLevel          slog.Level
	LogFormat         LogFormat
	Trace             uint32 // packets are traced 1 in so many from the start; 0: none
	TraceFolder       string // of the parts that nodes write
	JoinTimeout       time.Duration
	HeartbeatInterval time.Duration
	HeartbeatTimeout  time.Duration
	Recovers          bool
	Replicas          int
	MinWorkers        int           // see cluster.Config
	MaxWorkers        int           // likewise
	SchedulerTimeout  time.Duration // likewise
	RecoveryTimeout   time.Duration
	Resend            bool // see cluster.Config
	MetricsPort       int  // -1: no metrics; 0: any free port
	MetricsHost       string
	SendBuffer        int
	ReceiveBuffer     int
	PS                bool // the program uses fptps.ps: it ends a server or scheduler itself, and may meet programs of ps-lite
	Customer          int  // number of the customer that starts the node
}

// Alone reports whether the node is a worker without a cluster.
func (c *Config) Alone() bool { return c.Role == cluster.RoleWorker && c.SchedulerHost == "" }

// Settings lists all names that fptps reads. docs/configuration.md is made from it.
// Names of dmlc ps-lite have their meaning there.
var Settings = []Setting{
	{Name: "DMLC_ROLE", Default: "worker", Doc: "`scheduler`, `server` or `worker`.", parse: parseRole},
	{Name: "DMLC_PS_ROOT_URI", Doc: "Address of the scheduler. A worker without it, and without any other of DMLC_ROLE, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and DMLC_NUM_SERVER, runs alone: one worker, no network.",
		parse: func(c *Config, v string) error { c.SchedulerHost = v; return nil }},
	{Name: "DMLC_PS_ROOT_PORT", Doc: "Port of the scheduler.", parse: integer(1, 65535, func(c *Config) *int { return &c.SchedulerPort })},
	{Name: "DMLC_NUM_WORKER", Doc: "Number of workers.", parse: integer(1, wire.MaxWorkers, func(c *Config) *int { return &c.Workers })},
	{Name: "DMLC_NUM_SERVER", Doc: "Number of servers; 0 is allowed: the workers then sum among themselves.",
		parse: integer(0, wire.MaxWorkers, func(c *Config) *int { return &c.Servers })},
	{Name: "DMLC_NODE_HOST", Doc: "Address that other nodes connect to. Default: this machine's address on the route to the scheduler.",
		parse: func(c *Config, v string) error { c.Host = v; return nil }},
	{Name: "DMLC_INTERFACE", Doc: "Network interface whose address other nodes connect to. DMLC_NODE_HOST overrides it.", parse: parseInterface},
	{Name: "PORT", Default: "0", Doc: "Port on which this node accepts control messages; 0: any free one. The scheduler always uses DMLC_PS_ROOT_PORT.",
		parse: integer(0, 65535, func(c *Config) *int { return &c.Port })},
	{Name: "FPTPS_DATA_PORT", Default: "0", Doc: "Port on which this node accepts data connections, for firewalls and containers; 0: any free one. The scheduler has one too.",
		parse: integer(0, 65535, func(c *Config) *int { return &c.DataPort })},
	{Name: "PS_VERBOSE", Default: "0", Doc: "0: warnings and errors, 1: also what the node does, 2: everything. FPTPS_LOG overrides it.", parse: parseVerbose},
	{Name: "FPTPS_LOG", Doc: "The least level of the lines that are logged: `debug`, `info`, `warning` or `error`. Default: that of PS_VERBOSE, `warning`.", parse: parseLogLevel},
	{Name: "FPTPS_LOG_FORMAT", Default: "text", Doc: "How lines of the log look: `text`: key=value; `json`: one object on each line, and `fptps run` prints its program's lines so, too.",
		parse: parseLogFormat},
	{Name: "FPTPS_TRACE", Default: "0",
		Doc:   "Records [what happens to packets and operations](timeline.md) from the start: `1/64`: of 1 packet in 64 (any number up to 1,000,000), `1`: of every packet, `0`: nothing. Each node writes its part into a file when it ends.",
		parse: parseTrace},
	{Name: "FPTPS_TRACE_DIR", Default: "fptps-trace", Doc: "The folder in which a node that is traced writes its part of the timeline.",
		parse: func(c *Config, v string) error { c.TraceFolder = v; return nil }},
	{Name: "PS_HEARTBEAT_INTERVAL", Default: "5", Unit: "seconds", Doc: "Time between two heartbeats to the scheduler; 0: none.",
		parse: seconds(func(c *Config) *time.Duration { return &c.HeartbeatInterval })},
	{Name: "PS_HEARTBEAT_TIMEOUT", Default: "60", Unit: "seconds",
		Doc:   "A node without a heartbeat for so long is dead; 0: never. The end of a process is noticed at once, without it.",
		parse: seconds(func(c *Config) *time.Duration { return &c.HeartbeatTimeout })},
	{Name: "PS_RESEND", Default: "0", Doc: "1: the ps-lite programs of this cluster run with PS_RESEND=1, and wait until each message is acknowledged. Between nodes of fptps nothing has to be sent again.",
		parse: boolean(func(c *Config) *bool { return &c.Resend })},
	{Name: "FPTPS_RECOVERY", Default: "0",
		Doc:   "Of the scheduler: 1: the death of a server or a worker does not end a training. Each worker keeps the last sum of each tensor for that, and copies sums once more. Where aggregators hold what no worker has (an optimiser's weights, tables, tensors that are not `sync`), it takes FPTPS_REPLICAS=1, too.",
		parse: boolean(func(c *Config) *bool { return &c.Recovers })},
	{Name: "FPTPS_REPLICAS", Default: "0",
		Doc:   "Of the scheduler, with FPTPS_RECOVERY=1: 1: each node that keeps weights for the workers has a backup, another node with a replica of them, so that the training survives the death of that node.",
		parse: integer(0, 1, func(c *Config) *int { return &c.Replicas })},
	{Name: "FPTPS_MIN_WORKERS", Default: "1",
		Doc:   "Of the scheduler, with FPTPS_RECOVERY=1: a death that leaves fewer workers ends the training.",
		parse: integer(1, wire.MaxWorkers, func(c *Config) *int { return &c.MinWorkers })},
	{Name: "FPTPS_MAX_WORKERS",
		Doc:   "Of the scheduler, with FPTPS_RECOVERY=1: the number of workers at a time up to which it takes further ones. Default: DMLC_NUM_WORKER, so that further ones can take the places of dead ones alone.",
		parse: integer(1, wire.MaxWorkers, func(c *Config) *int { return &c.MaxWorkers })},
	{Name: "FPTPS_SCHEDULER_TIMEOUT", Default: "60", Unit: "seconds",
		Doc:   "Of the scheduler, with FPTPS_RECOVERY=1: when it dies, rounds go on, and whatever needs a scheduler (a barrier, `init` of a new key, `admit`, `close`, a death) waits so long for another one at its address, then raises NodeLostError; 0: its death ends the training at once.",
		parse: seconds(func(c *Config) *time.Duration { return &c.SchedulerTimeout })},
	{Name: "FPTPS_RECOVERY_TIMEOUT", Default: "60", Unit: "seconds",
		Doc:   "Of the scheduler, in a cluster of `fptps.ps` and ps-lite's programs: how long it keeps the place of a dead node for a successor before the cluster ends; 0: the cluster ends at once.",
		parse: seconds(func(c *Config) *time.Duration { return &c.RecoveryTimeout })},
	{Name: "FPTPS_TIMEOUT", Default: "60", Unit: "seconds", Doc: "How long a node tries to join. On a worker also the bound of every wait without a timeout of its own; `KVWorker(timeout=)` overrides it.",
		parse: seconds(func(c *Config) *time.Duration { return &c.JoinTimeout })},
	{Name: "FPTPS_SHARE", Doc: "This node's share of the summing, an integer relative to the others'. If no node has one, and the nodes are on several hosts, the workers sum what fewer servers cannot carry; else the default is 1 on a server, and on a worker 1 if there are no servers, else 0.",
		parse: integer(0, wire.MaxShare, func(c *Config) *int { return &c.Share })},
	{Name: "DMLC_WORKER_ID", Doc: "The rank that a worker asks for. Default: the scheduler orders workers by host and port.", parse: rank(cluster.RoleWorker)},
	{Name: "DMLC_SERVER_ID", Doc: "The same for a server.", parse: rank(cluster.RoleServer)},
	{Name: "FPTPS_TOKEN", Secret: true, Doc: "A secret word that all nodes of a cluster share. Nodes with another one are refused. `fptps run` generates one.",
		parse: func(c *Config, v string) error { c.Secret = v; return nil }},
	{Name: "FPTPS_LINK_RATE", Unit: "bit/s",
		Doc:   "The most that this node's network link carries, each direction: `1gbit`, `500mbit`; it need not be set. Packets to other hosts leave just below this rate; 0: without that bound. Default: the rate that the network interface reports, if any.",
		parse: bits(func(c *Config) *int64 { return &c.LinkRate })},
	{Name: "FPTPS_VAN", Default: "auto",
		Doc:   "How tensors travel between nodes of one host: `auto`: through shared memory if both nodes permit it; `tcp`: always over TCP; `shm`: always through shared memory, and a node on another host is an error.",
		parse: parseSharedMemory},
	{Name: "FPTPS_SCHEDULE", Default: "packet",
		Doc:   "The order in which packets leave, the same on all nodes, to see what each idea is worth: `packet`: the most urgent packet first; `message`: the most urgent tensor first, and whole; `partitioned`: packets in order, without priorities; `fifo`: the same, and no sum leaves before its whole tensor is summed.",
		parse: parseSchedule},
	{Name: "FPTPS_DETERMINISTIC", Default: "0",
		Doc:   "1: contributions are added in the order of the workers' ranks, so that the bits of every sum are the same in every run; the same on all workers. `KVWorker(deterministic=)` overrides it.",
		parse: boolean(func(c *Config) *bool { return &c.Deterministic })},
	{Name: "FPTPS_METRICS_PORT",
		Doc:   "Serves metrics for Prometheus: the scheduler at this port, servers and workers at the first free one after it; 0: any free port. Default: no metrics. [Where](seeing.md#metrics).",
		parse: integer(0, 65534, func(c *Config) *int { return &c.MetricsPort })},
	{Name: "FPTPS_METRICS_HOST", Default: "127.0.0.1", Doc: "The address at which metrics are served; `0.0.0.0`: all of this machine's. Whoever reaches it can read them.",
		parse: func(c *Config, v string) error { c.MetricsHost = v; return nil }},
	{Name: "FPTPS_SEND_BUFFER", Default: "0", Unit: "bytes", Doc: "SO_SNDBUF of data connections; 0: the kernel chooses, which is nearly always best.",
		parse: integer(0, 1<<30, func(c *Config) *int { return &c.SendBuffer })},
	{Name: "FPTPS_RECEIVE_BUFFER", Default: "0", Unit: "bytes", Doc: "SO_RCVBUF of data connections; 0: the kernel chooses, which is nearly always best.",
		parse: integer(0, 1<<30, func(c *Config) *int { return &c.ReceiveBuffer })},
}

// ParseConfig reads the settings from environment, and ignores other names in it.
// An empty value means that the name is not set.
func ParseConfig(environment map[string]string) (Config, error) {
	c := Config{Role: cluster.RoleWorker, RoleGiven: environment["DMLC_ROLE"] != "", Share: cluster.Unset, Workers: -1, Servers: -1, Rank: -1, LinkRate: -1, MetricsPort: -1}
	for _, s := range Settings {
		value := environment[s.Name]
		if value == "" {
			value = s.Default
		}
		if value == "" {
			continue
		}
		if err := s.parse(&c, value); err != nil {
			shown := value
			if s.Secret {
				shown = "..."
			}
			return Config{}, fault.New(fault.Config, "%s=%s: %v", s.Name, shown, err)
		}
	}
	return c, c.check()
}

// check returns an error for settings that are missing or contradict each other.
func (c *Config) check() error {
	// Settings of a cluster without the scheduler's address are a mistake, not a wish to
	// train alone: every process would train a model of its own.
	if c.Alone() && !c.RoleGiven && c.SchedulerPort == 0 && c.Workers < 0 && c.Servers < 0 {
		c.Workers, c.Servers = 1, 0
		return nil
	}
	missing := []string{}
	for name, unset := range map[string]bool{
		"DMLC_PS_ROOT_URI": c.SchedulerHost == "", "DMLC_PS_ROOT_PORT": c.SchedulerPort == 0,
		"DMLC_NUM_WORKER": c.Workers < 0, "DMLC_NUM_SERVER": c.Servers < 0,
	} {
		if unset {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		hint := "Set them, or start the whole cluster with `fptps run`"
		if c.Alone() {
			hint += "; to run alone, unset DMLC_ROLE, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and DMLC_NUM_SERVER"
		}
		return fault.New(fault.Config, "%v: not set: %s. %s", c.Role, strings.Join(missing, ", "), hint)
	}
	if c.HeartbeatTimeout > 0 && (c.HeartbeatInterval == 0 || c.HeartbeatTimeout <= c.HeartbeatInterval) {
		return fault.New(fault.Config, "PS_HEARTBEAT_TIMEOUT=%v must be longer than PS_HEARTBEAT_INTERVAL=%v, which must not be 0 then",
			c.HeartbeatTimeout, c.HeartbeatInterval)
	}
	return nil
}

// ParseOptions reads a JSON object of names and values as in the environment.
func ParseOptions(options string) (Config, error) {
	environment := map[string]string{}
	if err := json.Unmarshal([]byte(options), &environment); err != nil {
		return Config{}, fault.New(fault.Config, "the options are no JSON object of texts: %v", err)
	}
	return ParseConfig(environment)
}

// oneOf sets to to the choice that value names.
func oneOf[T any](to *T, value string, choices map[string]T, expected string) error {
	choice, known := choices[value]
	if !known {
		return errors.New(expected)
	}
	*to = choice
	return nil
}

func parseRole(c *Config, value string) error {
	return oneOf(&c.Role, value, map[string]cluster.Role{
		"scheduler": cluster.RoleScheduler, "server": cluster.RoleServer, "worker": cluster.RoleWorker,
	}, "a role is scheduler, server or worker")
}

func parseSharedMemory(c *Config, value string) error {
	return oneOf(&c.SharedMemory, value, map[string]transport.SharedMemory{
		"auto": transport.SharedMemoryAuto, "tcp": transport.SharedMemoryNever, "shm": transport.SharedMemoryAlways,
	}, "auto, tcp or shm is expected")
}

func parseSchedule(c *Config, value string) error {
	c.WholeSums = value == "fifo"
	return oneOf(&c.Schedule, value, map[string]transport.Schedule{
		"packet": transport.ByPacket, "message": transport.ByMessage, "partitioned": transport.InOrder, "fifo": transport.InOrder,
	}, "packet, message, partitioned or fifo is expected")
}

func parseVerbose(c *Config, value string) error {
	verbose := 0
	err := integer(0, 2, func(*Config) *int { return &verbose })(c, value)
	c.LogLevel = []slog.Level{slog.LevelWarn, slog.LevelInfo, slog.LevelDebug}[verbose]
	return err
}

func parseLogLevel(c *Config, value string) error {
	return oneOf(&c.LogLevel, value, map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError,
	}, "debug, info, warning or error is expected")
}

func parseLogFormat(c *Config, value string) error {
	return oneOf(&c.LogFormat, value, map[string]LogFormat{"text": LogText, "json": LogJSON}, "text or json is expected")
}

// ParseTrace reads "0", "1" or "1/64": how many packets there are for each that is traced, 0 if none is.
func ParseTrace(value string) (uint32, error) {
	var n int
	err := integer(0, 1, func(*Config) *int { return &n })(nil, value)
	if among, found := strings.CutPrefix(value, "1/"); found {
		err = integer(1, 1_000_000, func(*Config) *int { return &n })(nil, among)
	}
	if err != nil {
		return 0, errors.New("0, 1 or a fraction such as 1/64 is expected, of 1/1000000 at least")
	}
	return uint32(n), nil
}

func parseTrace(c *Config, value string) (err error) {
	c.Trace, err = ParseTrace(value)
	return err
}

func parseInterface(c *Config, value string) error {
	if c.Host != "" {
		return nil
	}
	device, err := net.InterfaceByName(value)
	if err != nil {
		return fmt.Errorf("no such network interface: %v", err)
	}
	addresses, err := device.Addrs()
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			c.Host = ip.IP.String()
			return nil
		}
	}
	return fmt.Errorf("the interface has no IPv4 address")
}

func boolean(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, value string) error {
		return oneOf(field(c), value, map[string]bool{"0": false, "1": true}, "0 or 1 is expected")
	}
}

func integer(least, most int, field func(*Config) *int) func(*Config, string) error {
	return func(c *Config, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < least || n > most {
			return fmt.Errorf("a whole number from %d to %d is expected", least, most)
		}
		*field(c) = n
		return nil
	}
}

// rank reads the requested rank of a node of one role; other roles ignore it.
func rank(role cluster.Role) func(*Config, string) error {
	return func(c *Config, value string) error {
		wish := -1
		err := integer(0, wire.MaxWorkers-1, func(*Config) *int { return &wish })(c, value)
		if c.Role == role {
			c.Rank = wish
		}
		return err
	}
}

func seconds(field func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, value string) error {
		s, err := strconv.ParseFloat(value, 64)
		if err != nil || !(s >= 0 && s <= 1e9) {
			return fmt.Errorf("a number of seconds is expected, 0 or more")
		}
		*field(c) = time.Duration(s * float64(time.Second))
		return nil
	}
}
