//! Apache Parquet: a row group for some chunks, columns compressed by gzip.

use super::given::count;
use super::lines::Line;
use crate::prove::PeriodKey;
use ::parquet::basic::Compression;
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::file::writer::{
    SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter,
};
use ::parquet::record::Field;
use ::parquet::schema::parser::parse_message_type;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use weir_meter::{Direction, OwnerKind, Totals};

/// Rows of a row group, at least, but for the last one.
const GROUP_ROWS: usize = 100_000;

/// Times are in UTC.
const SCHEMA: &str = "message usage {
    REQUIRED BYTE_ARRAY counter (STRING);
    REQUIRED BYTE_ARRAY boot_epoch (STRING);
    REQUIRED INT64 period;
    REQUIRED INT32 chunk;
    REQUIRED INT64 record;
    REQUIRED INT64 start (TIMESTAMP(MICROS, true));
    REQUIRED INT64 end (TIMESTAMP(MICROS, true));
    OPTIONAL BYTE_ARRAY owner (STRING);
    REQUIRED BYTE_ARRAY subscriber (STRING);
    REQUIRED BYTE_ARRAY session (STRING);
    REQUIRED BYTE_ARRAY keys (STRING);
    REQUIRED BYTE_ARRAY class (STRING);
    REQUIRED BYTE_ARRAY chargeable_user (STRING);
    REQUIRED BYTE_ARRAY service (STRING);
    OPTIONAL BYTE_ARRAY direction (STRING);
    REQUIRED INT32 flags;
    REQUIRED INT64 packets;
    REQUIRED INT64 bytes;
    OPTIONAL INT64 reported_packets;
    OPTIONAL INT64 reported_bytes;
    OPTIONAL BYTE_ARRAY more (JSON);
}";

/// A column's values so far; an optional one's levels say which are there.
enum Column {
    Text(Vec<ByteArray>, Option<Vec<i16>>),
    Int(Vec<i32>),
    Long(Vec<i64>, Option<Vec<i16>>),
}

fn other(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

fn text(text: &str) -> ByteArray {
    ByteArray::from(text.as_bytes().to_vec())
}

fn long(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Columns as the schema has them, empty.
fn columns() -> Vec<Column> {
    let lines = SCHEMA
        .lines()
        .filter(|line| line.contains("INT") || line.contains("BYTE"));
    lines
        .map(|line| {
            let levels = line.contains("OPTIONAL").then(Vec::new);
            if line.contains("BYTE_ARRAY") {
                Column::Text(Vec::new(), levels)
            } else if line.contains("INT32") {
                Column::Int(Vec::new())
            } else {
                Column::Long(Vec::new(), levels)
            }
        })
        .collect()
}

/// A value of a row.
enum Value<'a> {
    Text(&'a str),
    MaybeText(Option<&'a str>),
    Int(i32),
    Long(i64),
    MaybeLong(Option<i64>),
}

impl Column {
    fn push(&mut self, value: &Value<'_>) {
        match (self, value) {
            (Column::Text(values, None), Value::Text(it)) => values.push(text(it)),
            (Column::Text(values, Some(levels)), Value::MaybeText(it)) => {
                levels.push(it.is_some().into());
                values.extend(it.map(text));
            }
            (Column::Int(values), Value::Int(it)) => values.push(*it),
            (Column::Long(values, None), Value::Long(it)) => values.push(*it),
            (Column::Long(values, Some(levels)), Value::MaybeLong(it)) => {
                levels.push(it.is_some().into());
                values.extend(it);
            }
            _ => unreachable!("the values of a row are of the schema's types"),
        }
    }

    /// Writes the values, and forgets them.
    fn write<W: Write + Send>(
        &mut self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        let mut column = group.next_column()?.expect("as many as the schema has");
        match self {
            Column::Text(values, levels) => {
                put::<ByteArrayType>(&mut column, values, levels.as_mut())?;
            }
            Column::Int(values) => put::<Int32Type>(&mut column, values, None)?,
            Column::Long(values, levels) => put::<Int64Type>(&mut column, values, levels.as_mut())?,
        }
        column.close()
    }
}

fn put<T: DataType>(
    column: &mut SerializedColumnWriter<'_>,
    values: &mut Vec<T::T>,
    levels: Option<&mut Vec<i16>>,
) -> Result<(), ParquetError> {
    let given = levels.as_deref().map(Vec::as_slice);
    column.typed::<T>().write_batch(values, given, None)?;
    values.clear();
    if let Some(levels) = levels {
        levels.clear();
    }
    Ok(())
}

/// Makes a file of lines.
pub(super) struct Writer<W: Write + Send> {
    inner: SerializedFileWriter<W>,
    columns: Vec<Column>,
    rows: usize,
}

impl<W: Write + Send> Writer<W> {
    pub(super) fn new(out: W) -> io::Result<Writer<W>> {
        let schema = parse_message_type(SCHEMA).map_err(other)?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::GZIP(Default::default()))
            .set_created_by("weir".to_owned())
            .build();
        let inner = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties));
        Ok(Writer {
            inner: inner.map_err(other)?,
            columns: columns(),
            rows: 0,
        })
    }

    pub(super) fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
        let chunk = line.chunk;
        let owner = line.owner.map(|kind| match kind {
            OwnerKind::Session => "session",
            OwnerKind::Unattributed => "unattributed",
            OwnerKind::Overflow => "overflow",
        });
        let direction = line.direction.map(|direction| match direction {
            Direction::Up => "up",
            Direction::Down => "down",
        });
        let row = [
            Value::Text(&chunk.counter),
            Value::Text(&chunk.boot_epoch_hex),
            Value::Long(long(chunk.period)),
            Value::Int(chunk.number.cast_signed()),
            Value::Long(long(line.record)),
            Value::Long(chunk.unix_ns[0].div_euclid(1000)),
            Value::Long(chunk.unix_ns[1].div_euclid(1000)),
            Value::MaybeText(owner),
            Value::Text(line.subscriber),
            Value::Text(line.session),
            Value::Text(line.keys),
            Value::Text(line.class),
            Value::Text(line.chargeable_user),
            Value::Text(line.service),
            Value::MaybeText(direction),
            Value::Int(line.flags.0.into()),
            Value::Long(long(line.packets)),
            Value::Long(long(line.bytes)),
            Value::MaybeLong(line.reported.map(|it| long(it[0]))),
            Value::MaybeLong(line.reported.map(|it| long(it[1]))),
            Value::MaybeText(Some(line.more).filter(|more| !more.is_empty())),
        ];
        for (column, value) in self.columns.iter_mut().zip(&row) {
            column.push(value);
        }
        self.rows += 1;
        Ok(())
    }

    /// Writes a row group, if there are rows enough for one.
    pub(super) fn end_chunk(&mut self) -> io::Result<()> {
        if self.rows >= GROUP_ROWS {
            self.write_group().map_err(other)?;
        }
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.inner.next_row_group()?;
        for column in &mut self.columns {
            column.write(&mut group)?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        if self.rows > 0 {
            self.write_group().map_err(other)?;
        }
        self.inner.into_inner().map_err(other)
    }
}

pub(super) fn totals(file: File) -> Result<BTreeMap<PeriodKey, Totals>, String> {
    let said = |error: ParquetError| error.to_string();
    let reader = SerializedFileReader::new(file).map_err(said)?;
    let wanted = "message usage {
        REQUIRED BYTE_ARRAY counter (STRING);
        REQUIRED BYTE_ARRAY boot_epoch (STRING);
        REQUIRED INT64 period;
        OPTIONAL BYTE_ARRAY direction (STRING);
        REQUIRED INT64 packets;
        REQUIRED INT64 bytes;
    }";
    let wanted = parse_message_type(wanted).map_err(said)?;
    let mut totals: BTreeMap<PeriodKey, Totals> = BTreeMap::new();
    for row in reader.get_row_iter(Some(wanted)).map_err(said)? {
        let row = row.map_err(said)?;
        let fields: Vec<&Field> = row.get_column_iter().map(|(_, field)| field).collect();
        let [
            Field::Str(counter),
            Field::Str(epoch),
            Field::Long(period),
            direction,
            Field::Long(packets),
            Field::Long(bytes),
        ] = fields[..]
        else {
            return Err("other columns than weir's".to_owned());
        };
        let epoch = u64::from_str_radix(epoch, 16).map_err(|error| error.to_string())?;
        let direction = match direction {
            Field::Str(name) if name == "down" => Some(Direction::Down),
            _ => Some(Direction::Up),
        };
        let key = (counter.clone(), epoch, period.cast_unsigned());
        let sum = totals.entry(key).or_default();
        count(
            sum,
            direction,
            packets.cast_unsigned(),
            bytes.cast_unsigned(),
        );
    }
    Ok(totals)
}
